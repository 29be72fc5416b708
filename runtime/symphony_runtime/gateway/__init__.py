"""The gateway: the only role with a network, and the only one with the database.

    request -> connections -> http -> api or openai -> runs, programs, tenancy -> links -> worker
                                                          |            `--> egress -> the network
                                                       storage

`app` has the boot order, `api/routes` the routes, `runs/service` the life of a run.
"""
