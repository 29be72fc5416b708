"""The log: records that outlive the process, in memory-mapped files.

Bytes in a shared mapping of a file are in the system's page cache. They stay there when the process
is killed at any instant, so no write waits for a disk and none makes a system call. The log does
not outlive the machine; neither does anything that it serves.

    a segment   [header][payload][header][payload] .. [0, or old records]
    a header    sequence number, payload's length, CRC-32 of all three

The payload is written first and the header last, so that readers ignore an unfinished record.
Segments have a fixed size, allocated before they are mapped: a full disk is an OSError when a
segment is made, and never a fault on access. Segments are reused, because writing to fresh pages
costs ten times as much. Old records in them have lower sequence numbers and are not read again.
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

    def append(self, payload: bytes) -> None:
        """Write one record. OSError: no disk space, and nothing is written."""
        length = len(payload)
        end = self._at + _HEADER.size + length
        segment = self._segments[-1]
        if end > segment.size:
            self._start_segment(_HEADER.size + length)
            segment, end = self._segments[-1], _HEADER.size + length
        sequence = self.sequence
        memory = segment.memory
        memory[end - length : end] = payload
        check = crc32(payload, sequence & 0xFFFFFFFF ^ length)
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
            if len(self._spares) < SPARES_MAX and old.size == self._segment_bytes:
                self._spares.append(old)
            else:
                old.remove()

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
        if self._spares and room <= self._segment_bytes:
            segment = self._spares.pop()
            segment.reuse(path, self.sequence)
        else:
            segment = _Segment(path, self.sequence, max(room, self._segment_bytes))
        if self._segments:
            self._segments[-1].used += self._at
        self._bytes += self._at
        self._at = 0
        self._segments.append(segment)


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
