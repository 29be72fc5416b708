"""The gateway: the only role with a network and the only one with the database.

Boot order is in `app`, the routes are in `routes`, the life of a run is in `runs`.
"""
