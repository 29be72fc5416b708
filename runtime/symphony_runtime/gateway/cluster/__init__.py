"""Several gateways on one database: the members, and the runs of one that died."""
