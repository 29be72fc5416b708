"""Batches of requests, as OpenAI's batches: a file of requests, run at low priority."""
