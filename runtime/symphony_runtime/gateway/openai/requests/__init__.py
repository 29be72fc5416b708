"""Requests of the OpenAI routes, checked.

bodies        the bodies as models; they are also the OpenAPI schemas
parsing       a body -> a job for the shipped program
constraints   `response_format` and the `guided_` fields
limits        the model, and the bounds by the tenant's limits
"""
