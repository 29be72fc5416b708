"""Connections of clients: how many are open, and which are slow.

listener       the port, with TLS if there is a certificate
connections    their number, and how long one may be silent
slow_clients   bodies that arrive too slowly
slow_readers   answers that are not read
"""
