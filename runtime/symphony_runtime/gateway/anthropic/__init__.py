"""Anthropic's routes: messages, their token counts, and models in its form.

errors      errors in Anthropic's shape, and the `request-id` of each answer
bodies      the bodies as models; they are also the OpenAPI schemas
messages    messages and tools -> those of a chat
parsing     a body -> a job for the shipped program
shape       an answer in Anthropic's JSON, whole or as events
handlers    the routes

A request becomes the job of a chat: all else is that of the OpenAI routes (`gateway.openai`).
"""
