"""Storage that fails when a test says so, in processes that are running: see faults.c.

faults = Faults(tmp_path / "faults", folder)
server = start_server(folder, environment=faults.environment)
faults.arm(3, errno.ENOSPC)     # the third call from now on that changes a file below `folder`
faults.disarm()                 # -> how many calls failed
"""

import errno
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from enum import IntEnum, IntFlag
from functools import cache
from pathlib import Path

from tests.support.requirements import lacking

_SOURCE = Path(__file__).with_suffix(".c")
_COUNTS = struct.Struct("<8Q")  # armed, at, count, met, number, mode, kinds, pid
_FOLDER_AT, _FOLDER_BYTES, _LAST_AT, _BYTES = 64, 1984, 2048, 4096


class Kind(IntFlag):
    """Which calls count."""

    WRITE = 1
    SYNC = 2
    SIZE = 4  # of a file
    NAME = 8  # rename, link
    UNLINK = 16
    MAKE = 32  # a file, a folder
    ROOM = WRITE | SIZE | NAME | MAKE  # what a full disk refuses
    ANY = 63


class Mode(IntEnum):
    """What the call does that is counted out."""

    ONCE = 0  # it fails
    ON = 1  # it fails, and so do all behind it
    SHORT = 2  # a write writes half
    KILL = 3  # the process is gone before it


@cache
def library() -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        lacking("cc", "there is no cc to make storage that fails")
    if not Path("/proc/self/fd").is_dir():
        lacking("linux", "no /proc, which says what file a descriptor is of")
    made = Path(tempfile.mkdtemp(prefix="faults-")) / "faults.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(_SOURCE), "-ldl"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        lacking("cc", f"faults.c does not compile here: {ended.stderr[:300]}")
    return made


class Faults:
    """Faults of files below `folder`; processes read what to do from the file `control`."""

    def __init__(self, control: Path, folder: Path) -> None:
        self.environment = {"LD_PRELOAD": str(library()), "SYMPHONY_FAULTS": str(control)}
        control.write_bytes(bytes(_BYTES))
        with control.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BYTES)
        name = os.fsencode(folder.resolve()) + b"/"
        assert len(name) < _FOLDER_BYTES
        self._memory[_FOLDER_AT : _FOLDER_AT + len(name)] = name

    @classmethod
    def here(cls) -> "Faults":
        """Return those of this process, which was started with an `environment`, for its folder."""
        faults = cls.__new__(cls)
        with Path(os.environ["SYMPHONY_FAULTS"]).open("r+b") as file:
            faults._memory = mmap.mmap(file.fileno(), _BYTES)
        return faults

    def arm(
        self,
        at: int,
        number: int = errno.EIO,
        mode: Mode = Mode.ONCE,
        kinds: Kind = Kind.ANY,
        pid: int = 0,
    ) -> None:
        """Let the call that comes as `at`-th from now on fail; `pid` 0: of all processes."""
        self.disarm()
        _COUNTS.pack_into(self._memory, 0, 0, at, 0, 0, number, mode, kinds, pid)
        _COUNTS.pack_into(self._memory, 0, 1, at, 0, 0, number, mode, kinds, pid)

    def disarm(self) -> int:
        self._memory[:8] = bytes(8)
        return self.met

    @property
    def met(self) -> int:
        met: int = _COUNTS.unpack_from(self._memory, 0)[3]
        return met

    @property
    def calls(self) -> int:
        """How many calls have been counted since it was armed."""
        calls: int = _COUNTS.unpack_from(self._memory, 0)[2]
        return calls

    @property
    def last(self) -> str:
        """The path of the last call that met it."""
        return self._memory[_LAST_AT:].partition(b"\0")[0].decode(errors="replace")
