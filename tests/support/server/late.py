"""Find what a contained process of a server under test reads from disk: imports and files.

A contained process cannot open files, so an import after its containment fails, however seldom the
code that needs it runs. The server gets `PYTHONPATH` with a `sitecustomize` that installs an audit
hook in each of its processes, compilers and checkers of grammars among them. The hook writes to a
pipe with a name, which all of them have opened before they lose the file system.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

HOOK = """
import os, sys

_pipe = os.open(os.path.join(os.path.dirname(__file__), "late"), os.O_WRONLY | os.O_NONBLOCK)
_contained = False


def _watch(event, arguments):
    global _contained
    if event == "symphony.contained":
        _contained = True
        os.write(_pipe, b"%d contained\\n" % os.getpid())
    elif _contained and event in ("import", "open") and not isinstance(arguments[0], int):
        words = f"{os.getpid()} {event} {arguments[0]}\\n"
        os.write(_pipe, words.encode("ascii", "backslashreplace"))


sys.addaudithook(_watch)
"""


class Late:
    """What the contained processes of a server have tried to read."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(HOOK)
        os.mkfifo(folder / "late")
        # For writing, too: then the pipe has no end.
        self._pipe = os.open(folder / "late", os.O_RDWR | os.O_NONBLOCK)
        self._left = b""
        self.environment = {"PYTHONPATH": str(folder)}
        self.contained: set[int] = set()

    def attempts(self) -> list[str]:
        """Return what was tried since the last call: "import NAME" or "open PATH", each once."""
        found: dict[str, None] = {}
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._pipe, 1 << 16):
                self._left += data
        *lines, self._left = self._left.split(b"\n")
        for line in lines:
            pid, _, words = line.decode().partition(" ")
            if words == "contained":
                self.contained.add(int(pid))
            else:
                found[words] = None
        return list(found)

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self._pipe)


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[Late]:
    """Watch the processes that get `environment` for the length of a block."""
    late = Late(folder)
    try:
        yield late
    finally:
        late.close()
