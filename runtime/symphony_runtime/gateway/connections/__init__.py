"""Connections of clients: how many are open, and those that are slow.

listener                    the port, with TLS where a certificate is given
connections                 how many there are, and how long one may be silent
slow_bodies, slow_readers   requests that arrive too slowly, answers that are not read
"""
