"""The log: records that outlive the process, in memory-mapped files.

Bytes in a shared mapping of a file are in the system's page cache. They stay there when the process
is killed at any instant, so no write waits for a disk and none makes a system call. The log does
not outlive the machine; neither does anything that it serves.

    a segment   [header][payload][header][payload] .. [0, or old records]
    a header    sequence number, payload's length, CRC-32 of all three

The payload is written first and the header last, so that readers ignore an unfinished record.
Segments are allocated before they are mapped: a full disk is an OSError when a segment is made, and
never a fault on access. They have a fixed size, or a multiple of it for a larger record. Segments
are reused, because writing to fresh pages costs ten times as much. Old records in them have lower
sequence numbers and are not read again.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

SEGMENT_BYTES: Final = 8 << 20
SPARES_MAX: Final = 2  # segments that are kept for reuse
SPARE_TIMES_MAX: Final = 4  # the usual size: larger ones are not kept

_HEADER = struct.Struct("<QII")
_SUFFIX: Final = ".log"


class Log:
    """Appends records to segments in `folder`, numbered from `sequence` on; OSError."""

    def __init__(self, folder: Path, sequence: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        assert sequence > 0, "an empty segment reads as the number 0"
        self._folder = folder
        self._segment_bytes = segment_bytes
        self.sequence = sequence  # of the next record
        self._segments: list[_Segment] = []  # in order; the last one is written to
        self._spares: list[_Segment] = []
        self._at = 0  # in the last segment
        self._bytes = 0  # used, of all others
        self._start_segment(0)

    @property
    def size(self) -> int:
        """Bytes of all records in the log."""
        return self._bytes + self._at

    def append(self, *parts: bytes) -> None:
        """Write one record, of parts of a payload. OSError: no disk space, nothing is written."""
        length = sum(map(len, parts))
        end = self._at + _HEADER.size + length
        segment = self._segments[-1]
        if end > segment.size:
            self._start_segment(_HEADER.size + length)
            segment, end = self._segments[-1], _HEADER.size + length
        sequence = self.sequence
        memory = segment.memory
        at, check = end - length, sequence & 0xFFFFFFFF ^ length
        for part in parts:
            following = at + len(part)
            memory[at:following] = part
            at, check = following, crc32(part, check)
        _HEADER.pack_into(memory, self._at, sequence, length, check)
        self._at = end
        self.sequence = sequence + 1

    def rotate(self) -> int:
        """Start a new segment, and return the number of its first record."""
        self._start_segment(0)
        return self.sequence

    def drop_before(self, sequence: int) -> None:
        """Drop the segments that have only records before number `sequence`."""
        while len(self._segments) > 1 and self._segments[1].first <= sequence:
            old = self._segments.pop(0)
            self._bytes -= old.used
            self._keep_spare(old)

    def close(self) -> None:
        """Unmap all segments. The files stay."""
        for segment in (*self._segments, *self._spares):
            segment.memory.close()
        self._segments.clear()
        self._spares.clear()

    def _start_segment(self, room: int) -> None:
        path = self._folder / f"{self.sequence:016x}{_SUFFIX}"
        last = self._segments[-1] if self._segments else None
        if last is not None and last.first == self.sequence:  # it is empty
            if last.size >= room:
                return
            self._segments.pop().remove()
        segment = self._take_spare(room)
        if segment is not None:
            segment.reuse(path, self.sequence)
        else:
            size = -(-max(room, 1) // self._segment_bytes) * self._segment_bytes
            segment = _Segment(path, self.sequence, size)
        if self._segments:
            self._segments[-1].used += self._at
        self._bytes += self._at
        self._at = 0
        self._segments.append(segment)

    def _keep_spare(self, segment: "_Segment") -> None:
        """Keep a segment for reuse, or remove it. Of too many the smallest goes."""
        spares = self._spares
        if segment.size > SPARE_TIMES_MAX * self._segment_bytes:
            segment.remove()
            return
        spares.append(segment)
        spares.sort(key=lambda each: each.size)
        if len(spares) > SPARES_MAX:
            spares.pop(0).remove()

    def _take_spare(self, room: int) -> "_Segment | None":
        """Take the largest spare, so that large records find room in it; None: it is too small."""
        spares = self._spares
        return spares.pop() if spares and spares[-1].size >= room else None


class _Segment:
    """One mapped file. `first` is the number of its first record."""

    def __init__(self, path: Path, first: int, size: int) -> None:
        self.path, self.first, self.size = path, first, size
        self.used = 0  # bytes, once it is full
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            self.memory = mmap.mmap(descriptor, size, flags=flags)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)

    def reuse(self, path: Path, first: int) -> None:
        """Rename the file for the records from `first` on."""
        self.path.rename(path)
        self.path, self.first, self.used = path, first, 0

    def remove(self) -> None:
        self.memory.close()
        self.path.unlink(missing_ok=True)


def read(folder: Path, sequence: int) -> Iterator[bytes]:
    """Yield payloads from record `sequence` on, up to the first that is missing or damaged."""
    starts = sorted((int(path.stem, 16), path) for path in folder.glob(f"*{_SUFFIX}"))
    for index, (first, path) in enumerate(starts):
        following = starts[index + 1][0] if index + 1 < len(starts) else None
        if first > sequence or (following is not None and following <= sequence):
            continue
        for payload in _payloads(path.read_bytes(), first, sequence):
            yield payload
            sequence += 1


def _payloads(data: bytes, number: int, wanted: int) -> Iterator[bytes]:
    """Yield the payloads of a segment whose first record is `number`, from number `wanted` on."""
    at = 0
    while at + _HEADER.size <= len(data):
        sequence, length, check = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        payload = data[at : at + length]
        if sequence != number or crc32(payload, sequence & 0xFFFFFFFF ^ length) != check:
            return
        if number >= wanted:
            yield payload
        at += length
        number += 1
