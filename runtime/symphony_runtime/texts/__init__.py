"""Texts of a model, for gateway and workers: what the worker tokenizes and the gateway shows.

chat_escaping   texts of messages never become the template's control tokens
token_texts     the text of each token of a tokenizer
"""
