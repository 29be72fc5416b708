"""Compiled libraries: those that a wheel brings, and the user's directory of those made here.

A wheel has `shipped/` in this package, which `tools/build_wheel.py` fills; a checkout has none. The
user's directory is `SYMPHONY_CACHE_DIR`, else `symphony` in the XDG cache directory. Each library
has a second file with its digest, so that a truncated one is compiled again and not loaded.
"""

import hashlib
import os
from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "shipped"


class LibraryUnavailable(Exception):  # noqa: N818 - a state of the machine more than an error
    """This machine has no such library, for the reason in the message."""


def cache_directory() -> Path:
    """Return the directory, which only the user may write. Create it if it is missing.

    Raises LibraryUnavailable: it cannot be created, or others may write to it.
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
        words = f"the directory for compiled code cannot be used: {error}"
        raise LibraryUnavailable(words) from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        words = f"{directory} is writable by other users, which is unsafe for code"
        raise LibraryUnavailable(words)
    if not os.access(directory, os.W_OK):
        raise LibraryUnavailable(f"{directory} is not writable")
    return directory


def place_of(name: str) -> tuple[Path, bool]:
    """Return the path of a library, and whether it exists: the wheel's, else the user's.

    Raises LibraryUnavailable: the wheel does not bring it, and there is no user's directory.
    """
    shipped = SHIPPED / name
    if is_whole(shipped):
        return shipped, True
    target = cache_directory() / name
    return target, is_whole(target)


def put(made: Path, target: Path) -> None:
    """Write the digest of `made`, then rename it to `target`. Both are in one directory."""
    _digest_path(target).write_text(_digest(made))
    made.replace(target)


def is_whole(target: Path) -> bool:
    """Return whether the file exists and matches its digest."""
    try:
        return _digest_path(target).read_text() == _digest(target)
    except (OSError, UnicodeDecodeError):
        return False


def name_of(*parts: bytes) -> str:
    """Return a file name that is a digest of all parts."""
    lengths = b"".join(len(part).to_bytes(8, "little") for part in parts)
    return hashlib.sha256(lengths + b"".join(parts)).hexdigest()[:32]


def _digest_path(target: Path) -> Path:
    return target.with_suffix(".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
