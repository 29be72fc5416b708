"""Names: each tenant has one tree of named files.

A path is segments between slashes; one slash may lead, and means nothing: `/a/b` is `a/b`, and
so it is listed. What begins with `public/` belongs to the tenants that publish and cannot be a
tenant's own name.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from mypy_extensions import mypyc_attr

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PATH_BYTES_MAX

PUBLIC = "public"

T = TypeVar("T")


@dataclass(slots=True)
class Name:
    """What one tenant's path says of its file.

    A file that is not `loaded` lies on disk only: `entries` long, `size` bytes, and its KVFile is
    empty until somebody opens it.
    """

    durable: bool = False
    public: bool = False
    size: int = 0  # bytes on disk
    entries: int = 0
    loaded: bool = True


def parse_path(path: str | bytes) -> str:
    """Return the path without its leading slash.

    Raises:
        SyscallError: ENAMETOOLONG past PATH_BYTES_MAX; EINVAL for what is no UTF-8, is empty, has a
            NUL, or has a segment that is empty, `.` or `..`.
    """
    text = _decode(path).removeprefix("/")
    if "\0" in text or any(segment in ("", ".", "..") for segment in text.split("/")):
        raise SyscallError(Errno.EINVAL, "a path is segments between slashes, none '', '.' or '..'")
    return text


def parse_prefix(prefix: str | bytes) -> str:
    """Return what a listing's paths must begin with; the same errors, but any end will do."""
    return _decode(prefix).removeprefix("/")


def is_public(path: str) -> bool:
    """Say whether a parsed path lies where tenants publish."""
    return path == PUBLIC or path.startswith(PUBLIC + "/")


def _decode(path: str | bytes) -> str:
    # The length first: nothing of a path that is too long is looked at.
    if len(path) > PATH_BYTES_MAX:
        raise SyscallError(Errno.ENAMETOOLONG, f"a path has at most {PATH_BYTES_MAX} bytes")
    try:
        data = path.encode() if isinstance(path, str) else path
        text = data.decode()
    except UnicodeError as error:
        raise SyscallError(Errno.EINVAL, "a path is UTF-8") from error
    if len(data) > PATH_BYTES_MAX:
        raise SyscallError(Errno.ENAMETOOLONG, f"a path has at most {PATH_BYTES_MAX} bytes")
    return text


@mypyc_attr(allow_interpreted_subclasses=True)
class NameTree(Generic[T]):
    """Paths of one tenant, in order; it trusts its arguments."""

    def __init__(self) -> None:
        self._files: dict[str, T] = {}
        self._paths: list[str] = []  # sorted

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str) -> T | None:
        """Return what has this name."""
        return self._files.get(path)

    def put(self, path: str, file: T) -> T | None:
        """Name a file; return the one that had the name."""
        old = self._files.get(path)
        if old is None:
            insort(self._paths, path)
        self._files[path] = file
        return old

    def remove(self, path: str) -> T | None:
        """Forget a name; return what had it."""
        file = self._files.pop(path, None)
        if file is not None:
            del self._paths[bisect_left(self._paths, path)]
        return file

    def items(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, T]]:
        """Yield (path, file) in order for paths that begin with `prefix` and come after `after`."""
        start = bisect_left(self._paths, max(prefix, after))
        for index in range(start, len(self._paths)):
            path = self._paths[index]
            if not path.startswith(prefix):
                return
            if path != after or not after:
                yield path, self._files[path]
