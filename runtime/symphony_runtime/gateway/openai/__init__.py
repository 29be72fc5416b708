"""The OpenAI-compatible routes: each request is a run of a program that ships with the server.

requests/          what a client may ask for, checked, as a job for the program
shipped            the program itself (its source: `program/`)
inbox              the client's side of a run
program_messages   what the program sends; run_records: the same of any run
completions        ... as OpenAI's JSON; responses: of `/v1/responses`
serving            whole answers and streams of them
handlers           the routes
"""
