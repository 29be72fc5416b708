"""Reads a model's files, without blocking and up to a size."""

import json
import os
import reprlib
import stat
from pathlib import Path
from typing import Any

SETTINGS_BYTES_MAX = 4 << 20  # config.json and similar: most have a few KB
TOKENIZER_BYTES_MAX = 64 << 20  # 262,144 tokens with their merges take 33 MB
INDEX_BYTES_MAX = 32 << 20  # names of tensors, also in a safetensors header
_WORDS_MAX = 500  # characters of a message

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80


class CheckpointError(Exception):
    """A model's directory cannot be used; the message is one short line."""

    def __init__(self, words: str) -> None:
        words = " ".join(words.split())
        super().__init__(words if len(words) <= _WORDS_MAX else f"{words[:_WORDS_MAX]}...")


def shown(value: object) -> str:
    """Return a file's value for a message: as it is written, but short."""
    return _repr.repr(value)


def open_plain(path: Path) -> int:
    """Return a descriptor of a regular file; other kinds could block or never end.

    Raises:
        FileNotFoundError: the name does not exist, not even as a link.
        CheckpointError: it is no regular file, or cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link to a file that is missing") from None
        raise
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a regular file")
    return descriptor


def read_optional(path: Path, bytes_max: int = SETTINGS_BYTES_MAX) -> bytes | None:
    """Return a file's content, None if there is no file; CheckpointError."""
    try:
        descriptor = open_plain(path)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            found = file.read(bytes_max + 1)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    if len(found) > bytes_max:
        raise CheckpointError(f"{path} has more than the {bytes_max} bytes that are supported")
    return found


def read_file(path: Path, bytes_max: int = SETTINGS_BYTES_MAX) -> bytes:
    """Return a file's content; a missing file is a `CheckpointError`, too."""
    found = read_optional(path, bytes_max)
    if found is None:
        raise CheckpointError(f"{path} is missing")
    return found


def text_of(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def parse_json(path: Path, data: bytes) -> dict[str, Any]:
    """Return the JSON object in a file's content; CheckpointError."""
    try:
        value = json.loads(text_of(path, data))
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except RecursionError:
        raise CheckpointError(f"{path} cannot be read: it is nested too deep") from None
    except MemoryError:
        raise CheckpointError(f"{path} takes more memory than is supported") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return value
