"""Names: each tenant has one tree of named files.

A path is segments between slashes. One leading slash is ignored: `/a/b` is `a/b`, and is listed so.
Paths below `public/` belong to the tenants that publish, and cannot be a tenant's own names.
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
    """What is known of a named file besides its content.

    A file that is not `loaded` is on disk only: `entries` long and `size` bytes. Its KVFile is
    empty until a call opens it.
    """

    durable: bool = False
    public: bool = False
    size: int = 0  # bytes on disk
    entries: int = 0
    loaded: bool = True


def parse_path(path: str | bytes) -> str:
    """Return the path without its leading slash.

    Raises SyscallError: ENAMETOOLONG past PATH_BYTES_MAX; EINVAL if it is not UTF-8, is empty, has
    a NUL, or has a segment that is empty, `.` or `..`.
    """
    text = _decode(path).removeprefix("/")
    if "\0" in text or any(segment in ("", ".", "..") for segment in text.split("/")):
        raise SyscallError(Errno.EINVAL, "a path is segments between slashes, none '', '.' or '..'")
    return text


def parse_prefix(prefix: str | bytes) -> str:
    """Return a listing's prefix; errors as `parse_path`, but it may end anywhere."""
    return _decode(prefix).removeprefix("/")


def is_public(path: str) -> bool:
    """Whether a parsed path is below `public/`."""
    return path == PUBLIC or path.startswith(PUBLIC + "/")


def _decode(path: str | bytes) -> str:
    # The length first: a path that is too long is not decoded.
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
    """The paths of one tenant, in order; arguments are trusted."""

    def __init__(self) -> None:
        self._files: dict[str, T] = {}
        self._paths: list[str] = []  # sorted

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str) -> T | None:
        return self._files.get(path)

    def put(self, path: str, file: T) -> T | None:
        """Name a file; return the file that had the name."""
        old = self._files.get(path)
        if old is None:
            insort(self._paths, path)
        self._files[path] = file
        return old

    def remove(self, path: str) -> T | None:
        file = self._files.pop(path, None)
        if file is not None:
            del self._paths[bisect_left(self._paths, path)]
        return file

    def items(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, T]]:
        """Yield (path, file), in order, of paths with `prefix` that come after `after`."""
        start = bisect_left(self._paths, max(prefix, after))
        for index in range(start, len(self._paths)):
            path = self._paths[index]
            if not path.startswith(prefix):
                return
            if path != after or not after:
                yield path, self._files[path]
