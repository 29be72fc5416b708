"""Passes over the linked Wasm of an interpreter in C, which need nothing but plain Wasm."""
