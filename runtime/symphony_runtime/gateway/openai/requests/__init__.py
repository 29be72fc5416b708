"""Requests of the OpenAI routes, checked.

parsing       a request's body -> a job for the shipped program
fields        an object that is read field by field, and may hold no other
constraints   `response_format` and the `guided_` fields
limits        what a tenant's limits leave room for; model: what the kernel says of the model
"""
