"""A kernel's journal, and what may happen to it: its kernel dies or stops, its files are damaged.

A kernel that is killed leaves whole records (the system has them). The machine may tear the last
one or change any byte: then a journal is healed (the rest of it holds, and a peer that knows more
than it learns that the kernel is another one), or refused and set aside.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

from symphony_kernel.__main__ import revive
from symphony_kernel.config import Configuration
from symphony_kernel.journal.store import Store
from symphony_kernel.kernel import Kernel

from tests.support.kernel.crashes import differences, image, recovered_image

DEATHS = ("kill", "doom", "stop")
DAMAGES = ("torn", "bits", "image", "segment", "length", "again", "attempts", "rubbish")
_HEADER = struct.Struct("<QII")  # sequence, length, check: see `journal.log`
_LOG_BYTES = (4_000, 60_000)  # of records between two images
_KILLED = -9


class Journal:
    """One journal, of one kernel after the other."""

    def __init__(self, folder: Path, rng: Random) -> None:
        self._folder = folder
        self._log_bytes = rng.choice(_LOG_BYTES)
        self._configuration = Configuration(
            socket=Path("none"), secrets={}, journal=folder, ended=_KILLED
        )

    def boot(self, make: Callable[[], Kernel]) -> Kernel:
        """Start a kernel as its process does."""
        return revive(self._configuration, make, self._log_bytes)

    def differences(self, kernel: Kernel, other: Kernel) -> list[str]:
        """Return in words where `other`, come back from the journal, differs from the kernel."""
        store = Store(self._folder, self._configuration.identity(*kernel.model()))
        found = recovered_image(store, other, self._log_bytes)
        return ["there is no journal"] if found is None else differences(found, image(kernel))

    # -- Damage --------------------------------------------------------------------------------
    def harm(self, what: str, rng: Random) -> None:
        logs, images = sorted(self._folder.glob("*.log")), sorted(self._folder.glob("*.image"))
        if what == "torn" and logs:
            _tear(logs, rng)
        elif what == "bits":
            path = rng.choice([*logs, *images])
            _change(path, _used(path), rng)
        elif what == "image" and images:
            data = images[-1].read_bytes()
            images[-1].write_bytes(data[: rng.randrange(len(data))])
        elif what == "segment" and logs:
            rng.choice(logs).unlink()
        elif what == "length" and logs:
            _lie(rng.choice(logs), rng)
        elif what == "again" and logs:
            _repeat(rng.choice(logs), rng)
        elif what == "attempts":
            words = rng.choice((b"", b"{", b'{"began": "x"}', b'{"failures": 1e999}', b"\xff"))
            (self._folder / "attempts").write_bytes(words)
        elif what == "rubbish":
            (self._folder / f"{rng.randrange(1 << 60):016x}.image").write_bytes(rng.randbytes(99))
            (self._folder / f"{rng.randrange(1 << 60):016x}.log").write_bytes(rng.randbytes(999))


def _places(path: Path) -> list[tuple[int, int]]:
    """Return where each record of a segment begins, and how long its payload is."""
    data, at, places = path.read_bytes(), 0, []
    number = int(path.stem, 16)
    while at + _HEADER.size <= len(data):
        sequence, length, _ = _HEADER.unpack_from(data, at)
        if sequence != number:
            break
        places.append((at, length))
        at += _HEADER.size + length
        number += 1
    return places


def _used(path: Path) -> int:
    """Return how many bytes of a file say anything."""
    if path.suffix != ".log":
        return path.stat().st_size
    places = _places(path)
    return sum(places[-1]) + _HEADER.size if places else _HEADER.size


def _write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _tear(logs: list[Path], rng: Random) -> None:
    """Leave of the last record its beginning: zeros behind it, or what was there before."""
    path = next((each for each in reversed(logs) if _places(each)), None)
    if path is None:
        return
    at, length = _places(path)[-1]
    whole = _HEADER.size + length
    kept = rng.randrange(whole)
    rest = bytes(whole - kept) if rng.random() < 0.7 else rng.randbytes(whole - kept)
    _write(path, at + kept, rest)


def _change(path: Path, used: int, rng: Random) -> None:
    data = path.read_bytes()[:used]
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(data))
        _write(path, at, bytes([data[at] ^ 1 << rng.randrange(8)]))


def _lie(path: Path, rng: Random) -> None:
    places = _places(path)
    if places:
        at, length = rng.choice(places)
        said = rng.choice((0, 1, max(length - 1, 0), length + 1, 1 << 31, (1 << 32) - 1))
        _write(path, at + 8, said.to_bytes(4, "little"))


def _repeat(path: Path, rng: Random) -> None:
    """Put a record where another one was, or behind the last one."""
    places = _places(path)
    if places:
        at, length = rng.choice(places)
        record = path.read_bytes()[at : at + _HEADER.size + length]
        where = rng.choice([place for place, _ in places] + [_used(path)])
        _write(path, where, record)
