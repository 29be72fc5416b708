"""Passes over the linked Wasm of an interpreter in C, which make it what the server can run safely."""
