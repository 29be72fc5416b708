"""The embedded tiny model: a Llama of 5.5 million parameters that continues Python code.

The server uses it when no other model is named, and the tests use it as a real model. How it
was made stands in the folder's README.
"""

from pathlib import Path


def path() -> Path:
    """Returns the folder of the model, in the ordinary Hugging Face layout."""
    return Path(__file__).resolve().parent / "weights"
