"""The user's directory of what was compiled on this machine, and files in it that are whole.

It is `SYMPHONY_CACHE_DIR`, else `symphony` in the XDG cache directory. Beside each file in it lies
its digest, so that one that was cut short is compiled again and not loaded.
"""

import hashlib
import os
from pathlib import Path


class NoCacheError(Exception):
    """There is no directory for what is compiled, or it is no place for code."""


def cache_directory() -> Path:
    """Return the directory, which is the user's alone; it is made when it is not there.

    Raises:
        NoCacheError: why there is none.
    """
    given = os.environ.get("SYMPHONY_CACHE_DIR")
    try:
        if given:
            directory = Path(given)
        else:
            cache = os.environ.get("XDG_CACHE_HOME")
            directory = (Path(cache) if cache else Path.home() / ".cache") / "symphony"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except (OSError, RuntimeError) as error:
        raise NoCacheError(f"no directory for compiled kernels: {error}") from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise NoCacheError(f"others may write in {directory}: it is no place for code")
    if not os.access(directory, os.W_OK):
        raise NoCacheError(f"{directory} cannot be written")
    return directory


def put(made: Path, target: Path) -> None:
    """Move a file that was made in the same directory to its place, its digest first."""
    _digest_path(target).write_text(_digest(made))
    made.replace(target)


def is_whole(target: Path) -> bool:
    """Whether the file is there as it was put there."""
    try:
        return _digest_path(target).read_text() == _digest(target)
    except (OSError, UnicodeDecodeError):
        return False


def name_of(*parts: bytes) -> str:
    """Return a file name that follows from all of these."""
    lengths = b"".join(len(part).to_bytes(8, "little") for part in parts)
    return hashlib.sha256(lengths + b"".join(parts)).hexdigest()[:32]


def _digest_path(target: Path) -> Path:
    return target.with_suffix(".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
