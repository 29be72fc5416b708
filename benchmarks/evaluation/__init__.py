"""The paper's applications as programs, beside clients of prompt servers that do the same."""
