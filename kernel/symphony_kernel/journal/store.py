"""The store: one kernel's journal in a directory, and whether it may be used.

    <sequence>.image   a snapshot: the state before the record of this number
    <sequence>.log     the records from this number on (`log`)
    attempts           recoveries so far, and how they ended
    aside/             a journal that could not be used, kept for its operator

A snapshot is written to a partial file and renamed, then the records that it contains are dropped.
So at any instant there is one whole snapshot, and all records after it.

A journal that crashes the kernel each time is worse than none. A kernel notes that it recovers, and
again that it has recovered. If it then dies after less than RECORDS_PROOF records, within a minute
of its start, the attempt counts as failed. After FAILURES_MAX failed attempts in a row (KILLS_MAX
for kernels that were killed), the journal is set aside.
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
# A kernel that wrote so many is not crashed by the state that it recovered. A kernel that was
# killed may have been healthy: it counts only if it wrote none.
RECORDS_PROOF: Final = 64

_log = logging.getLogger(__name__)
_SNAPSHOT_HEADER = struct.Struct("<8s32sQQI")  # magic, identity, sequence, length, CRC-32
_MAGIC: Final = b"symimage"
_ASIDE: Final = "aside"
_KILLED: Final = -9


@dataclass(slots=True)
class Attempts:
    """Failed recoveries in a row, and the state of the last recovery."""

    began: float = 0.0
    sequence: int = 0  # the first record after it
    recovered: bool = False
    failures: int = 0
    kills: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A journal to recover from: the snapshot before record `sequence`, and the records."""

    sequence: int
    snapshot: bytes = field(repr=False)
    records: Iterator[bytes] = field(repr=False)


class Store:
    """A directory. `identity` ([32]) is the digest of model and configuration."""

    def __init__(self, folder: Path, identity: bytes) -> None:
        assert len(identity) == 32
        self._folder = folder
        self._identity = identity

    # -- Before the kernel runs ------------------------------------------------------------------
    def find(self, now: float, ended: int | None) -> Found | None:
        """Return the previous kernel's journal; None: there is none that may be used; OSError.

        `now`: seconds of a clock that all kernels share. `ended`: the previous kernel's exit code.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._newest()
        if found is None:
            if any(self._folder.glob("*.image")):
                self.set_aside("damaged, or of another model or configuration")
            return None
        attempts = self._judge(found, now, ended)
        if attempts.failures >= FAILURES_MAX or attempts.kills >= KILLS_MAX:
            self.set_aside(f"{attempts.failures + attempts.kills} kernels crashed soon after it")
            return None
        attempts.began, attempts.sequence, attempts.recovered = now, 0, False
        self._write_attempts(attempts)
        return found

    def recovered(self, sequence: int) -> None:
        """Note that the kernel has recovered; its next record is `sequence`."""
        attempts = self._attempts()
        attempts.sequence, attempts.recovered = sequence, True
        self._write_attempts(attempts)

    def set_aside(self, reason: str) -> None:
        """Move the journal to `aside/`, so that the kernel starts without one."""
        _log.error("THE JOURNAL IS SET ASIDE: %s; the kernel starts empty", reason)
        aside = self._folder / _ASIDE
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for path in list(self._folder.iterdir()):
            if path != aside:
                path.rename(aside / path.name)

    def _newest(self) -> Found | None:
        for path in sorted(self._folder.glob("*.image"), reverse=True):
            data = path.read_bytes()
            if len(data) < _SNAPSHOT_HEADER.size:
                continue
            magic, identity, sequence, length, check = _SNAPSHOT_HEADER.unpack_from(data)
            snapshot = data[_SNAPSHOT_HEADER.size :]
            if (magic, len(snapshot), crc32(snapshot)) == (_MAGIC, length, check):
                if identity != self._identity:
                    return None
                return Found(sequence, snapshot, read(self._folder, sequence))
        return None

    def _judge(self, found: Found, now: float, ended: int | None) -> Attempts:
        """Return the attempts so far, with the outcome of the last one."""
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
        """Return the attempts in the file; none if it is damaged."""
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
    def begin(self, sequence: int, snapshot: bytes) -> Log:
        """Write a snapshot, and return the log of the records from `sequence` on. OSError."""
        # Logs that must not be taken for ours: a kernel that recovered and wrote nothing has left
        # one, an interrupted removal may have left several.
        for path in self._folder.glob("*.log"):
            if int(path.stem, 16) >= sequence:
                path.unlink()
        log = Log(self._folder, sequence)
        try:
            self.write_snapshot(sequence, snapshot)
        except OSError:
            log.close()
            raise
        for path in self._folder.glob("*.log"):
            if int(path.stem, 16) < sequence:
                path.unlink()
        return log

    def write_snapshot(self, sequence: int, snapshot: bytes) -> None:
        """Write the snapshot before record `sequence`; delete older ones. For any thread."""
        header = _SNAPSHOT_HEADER.pack(
            _MAGIC, self._identity, sequence, len(snapshot), crc32(snapshot)
        )
        partial = self._folder / "image.partial"
        with partial.open("wb") as file:
            file.write(header)
            file.write(snapshot)
        partial.rename(self._folder / f"{sequence:016x}.image")
        for path in self._folder.glob("*.image"):
            if int(path.stem, 16) < sequence:
                path.unlink()

    def remove(self) -> None:
        """Delete the journal.

        Snapshots go first, older before newer. So an interrupted removal leaves a whole journal or
        none.
        """
        rest = [path for path in self._folder.iterdir() if path.name != _ASIDE]
        for path in sorted(rest, key=lambda path: (path.suffix != ".image", path.name)):
            path.unlink()
