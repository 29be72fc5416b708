"""The data directory: durable files, and whether it and its files are those of the start.

SQLite continues to write to a file that has been removed, and all of it is lost with the process:
from then on nothing may be acknowledged.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from symphony_runtime.gateway.errors import Problem


class DataDirectory:
    """The data directory and its files. A check takes a few microseconds."""

    def __init__(self, path: Path, files: Iterable[str] = ()) -> None:
        """`files`: names of files; those that exist now must stay."""
        self._known = {each: _identity(each) for each in (path, *(path / name for name in files))}

    def fault(self) -> str | None:
        for path, known in self._known.items():
            if known is not None and _identity(path) != known:
                return f"{path} was removed or replaced; the server must be started again"
        return None

    def check(self) -> None:
        """Raise a Problem, 503, if something is gone."""
        if self.fault() is not None:
            detail = "the server's data directory is gone; an operator must start the server again"
            raise Problem(503, "data-directory-gone", detail)


def write_durably(path: Path, data: bytes) -> None:
    """Write a private file atomically: write, sync, rename, sync the folder. OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)  # free the space at once: the disk may be full
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - called at each request
    except OSError:
        return None
    return found.st_dev, found.st_ino
