"""The OpenAI-compatible routes: each request is a run of a program that ships with the server.

requests   what a client may ask for, checked, as a job for the program
shipped    the program itself
inbox      the client's side of a run
records    what the program tells
shapes     ... as OpenAI's JSON
serving    whole answers and streams of them
handlers   the routes
"""
