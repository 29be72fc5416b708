"""Folders for Unix sockets, whose paths have a limit of about a hundred bytes.

A temporary directory may have a long name of its own, and pytest's folders add the user's and the
test's. Where the configured one leaves no room, the system's common one is taken.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PARENT_BYTES_MAX = 50  # what is left holds a folder's name and the sockets' in it


def make_socket_folder(prefix: str = "sy-") -> Path:
    """Make a folder, for this user alone, whose path leaves room for sockets' names."""
    given = tempfile.gettempdir()
    short = len(os.fsencode(given)) <= _PARENT_BYTES_MAX
    return Path(tempfile.mkdtemp(prefix=prefix, dir=given if short else "/tmp"))


@contextmanager
def temporary_socket_folder() -> Iterator[Path]:
    """Such a folder for the length of a block."""
    folder = make_socket_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
