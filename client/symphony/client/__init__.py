"""The client of the HTTP interface.

`async_client` joins what is done with programs, runs, KV files and by operators; each of these is a
module. All make their requests through `transport`.
"""
