"""Several gateways on one database: which are there, and the runs of one that died."""
