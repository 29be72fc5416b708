"""Requests of the OpenAI routes, checked.

bodies        the bodies as models; they are also the OpenAPI schemas
parsing       a body -> a job for the shipped program
messages      conversations; response_items: those of `/v1/responses`
conversation  a conversation as the program renders it; json_fallback: without the template's help
tools         definitions, the choice of tools, and what holds the model to it
response_tools  those of `/v1/responses`, told as functions
constraints   `response_format` and the `guided_` fields
limits        the model, and the bounds by the tenant's limits
"""
