"""Measures servers of the OpenAI protocol beside each other; `__main__` says how."""
