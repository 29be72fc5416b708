"""The embedded tiny model: a Llama of 5.5 million parameters for Python code.

The server uses it when no other model is named, and the tests use it as a real model. The folder's
README says how it was made.
"""

from pathlib import Path


def path() -> Path:
    """Return the folder of the model, in Hugging Face layout."""
    return Path(__file__).resolve().parent / "weights"
