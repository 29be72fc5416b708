"""The OpenAI-compatible routes: each request is a run of a program that ships with the server.

requests/          bodies, checked, as jobs for the program
program_messages   what the program sends (its source: `program/`)
formats            how families of models write tool calls and reasoning
run_records        the records of any run; the inbox of a run that is not stored
completions        answers in OpenAI's JSON
responses          those of `/v1/responses`; response_output: the items of their output
stored/            responses that are kept: to read, to follow and to build upon
serving            whole answers and streams of them
handlers           the routes
"""
