"""The store: one kernel's journal in a directory, and whether it may be believed.

    <sequence>.image   all that there was before the record of this number
    <sequence>.log     the records from this number on (`log`)
    attempts           how often the kernel has been brought back, and what came of it
    aside/             a journal that was not to be used, for whoever wants to know why

An image is written beside the one before it and takes its place in one move; then the records that
it contains are forgotten. So at any instant there is one whole image, and all records behind it.

A journal that brings the kernel down each time is worse than none. Whoever recovers says so first,
and again afterwards; what has written no more than a few records since did not get far. After
FAILURES_MAX of those in a row that ended by themselves (KILLS_MAX, when they were killed), each
less than a minute after the one before, the journal is set aside.
"""

import json
import logging
import shutil
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Final
from zlib import crc32

from symphony_kernel.journal.log import Log, read

FAILURES_MAX: Final = 3
KILLS_MAX: Final = 10
ATTEMPT_SECONDS: Final = 60.0
# Who has written so many is not brought down by what it began with. Who was killed from outside may
# have been well: of those only the ones that had written nothing count.
RECORDS_PROOF: Final = 64

_log = logging.getLogger(__name__)
_IMAGE = struct.Struct("<8s32sQQI")  # magic, identity, sequence, length, CRC-32 of the data
_MAGIC: Final = b"symimage"
_ASIDE: Final = "aside"
_KILLED: Final = -9


@dataclass(slots=True)
class Attempts:
    """Recoveries in a row that did not get far. `sequence` is where the last one began."""

    began: float = 0.0
    sequence: int = 0
    recovered: bool = False
    failures: int = 0
    kills: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A journal to go on from: what there was before record `sequence`, and the records."""

    sequence: int
    image: bytes = field(repr=False)
    records: Iterator[bytes] = field(repr=False)


class Store:
    """A directory. `identity` ([32]) is the model's and the configuration's digest."""

    def __init__(self, folder: Path, identity: bytes) -> None:
        assert len(identity) == 32
        self._folder = folder
        self._identity = identity

    # -- Before the kernel runs --------------------------------------------------------------------
    def find(self, now: float, ended: int | None) -> Found | None:
        """Return the journal of the kernel before, if there is one that may be used.

        `now` is in seconds of a clock that all kernels share; `ended` the last one's exit code.

        Raises:
            OSError: the directory cannot be used.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._newest()
        if found is None:
            if any(self._folder.glob("*.image")):
                self.set_aside("it is damaged, or of another model or configuration")
            return None
        attempts = self._judge(found, now, ended)
        if attempts.failures >= FAILURES_MAX or attempts.kills >= KILLS_MAX:
            self.set_aside(f"{attempts.failures + attempts.kills} kernels have not got far with it")
            return None
        attempts.began, attempts.sequence, attempts.recovered = now, 0, False
        self._write_attempts(attempts)
        return found

    def recovered(self, sequence: int) -> None:
        """The kernel is what it was; it goes on with record `sequence`."""
        attempts = self._attempts()
        attempts.sequence, attempts.recovered = sequence, True
        self._write_attempts(attempts)

    def set_aside(self, reason: str) -> None:
        """Keep the journal for whoever wants to know, and begin without."""
        _log.error("THE JOURNAL IS SET ASIDE: %s; the kernel starts with nothing", reason)
        aside = self._folder / _ASIDE
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for path in list(self._folder.iterdir()):
            if path != aside:
                path.rename(aside / path.name)

    def _newest(self) -> Found | None:
        for path in sorted(self._folder.glob("*.image"), reverse=True):
            data = path.read_bytes()
            if len(data) < _IMAGE.size:
                continue
            magic, identity, sequence, length, check = _IMAGE.unpack_from(data)
            image = data[_IMAGE.size :]
            if (magic, len(image), crc32(image)) == (_MAGIC, length, check):
                if identity != self._identity:
                    return None
                return Found(sequence, image, read(self._folder, sequence))
        return None

    def _judge(self, found: Found, now: float, ended: int | None) -> Attempts:
        """Return the attempts so far, with what came of the last one."""
        attempts = self._attempts()
        if not attempts.began:
            return attempts
        records = sum(1 for _ in read(self._folder, max(attempts.sequence, found.sequence)))
        far = attempts.recovered and (found.sequence - attempts.sequence) + records
        proof = 1 if ended == _KILLED else RECORDS_PROOF
        if now - attempts.began > ATTEMPT_SECONDS or far >= proof:
            return Attempts()
        if ended == _KILLED:
            attempts.kills += 1
        else:
            attempts.failures += 1
        return attempts

    def _attempts(self) -> Attempts:
        """Return what is known of them; of what is damaged nothing is."""
        try:
            found = Attempts(**json.loads((self._folder / "attempts").read_text()))
        except (OSError, ValueError, TypeError):
            return Attempts()
        counts = found.sequence, found.failures, found.kills
        whole = all(type(count) is int and count >= 0 for count in counts)
        began = type(found.began) in (int, float) and isfinite(found.began)
        return found if whole and began and type(found.recovered) is bool else Attempts()

    def _write_attempts(self, attempts: Attempts) -> None:
        partial = self._folder / "attempts.partial"
        partial.write_text(json.dumps(asdict(attempts)))
        partial.rename(self._folder / "attempts")

    # -- While it runs -------------------------------------------------------------------------
    def begin(self, sequence: int, image: bytes) -> Log:
        """Write what there is, and return the log of what follows; OSError."""
        # A kernel that came back and wrote nothing has left one; a removal that was cut short more,
        # of records that must not be taken for ours.
        for path in self._folder.glob("*.log"):
            if int(path.stem, 16) >= sequence:
                path.unlink()
        log = Log(self._folder, sequence)
        try:
            self.write_image(sequence, image)
        except OSError:
            log.close()
            raise
        for path in self._folder.glob("*.log"):
            if int(path.stem, 16) < sequence:
                path.unlink()
        return log

    def write_image(self, sequence: int, image: bytes) -> None:
        """Write all that there is before record `sequence`; older images go. May be in a thread."""
        header = _IMAGE.pack(_MAGIC, self._identity, sequence, len(image), crc32(image))
        partial = self._folder / "image.partial"
        with partial.open("wb") as file:
            file.write(header)
            file.write(image)
        partial.rename(self._folder / f"{sequence:016x}.image")
        for path in self._folder.glob("*.image"):
            if int(path.stem, 16) < sequence:
                path.unlink()

    def remove(self) -> None:
        """Leave no journal behind: there is nothing to come back to, or nothing to believe.

        Images go first, and older ones before newer: what is cut short leaves all or nothing.
        """
        rest = [path for path in self._folder.iterdir() if path.name != _ASIDE]
        for path in sorted(rest, key=lambda path: (path.suffix != ".image", path.name)):
            path.unlink()
