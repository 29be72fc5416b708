"""Waiting for a change of a project's files, by polling their times.

A project has tens of files: one look at all of them takes a fraction of a millisecond. Polling
needs no library, and works on network file systems and in containers where inotify sees nothing.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

POLL_SECONDS_MIN = 0.02
_SHARE_MAX = 0.1  # of a processor, for looking: a folder of many files is looked at less often
_IGNORED = frozenset({"target", "build", "node_modules", "vendor", "__pycache__"})
_State = dict[str, tuple[int, int]]  # by path: modification time in ns, size


class Watch:
    """The files of a project's folder, but for what compilers and editors write there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pause = POLL_SECONDS_MIN
        self._seen = self._look()

    async def wait_for_change(self) -> list[str]:
        """Return the paths, from the folder, that have changed since the last call.

        Editors write a file in several steps: it waits until two looks are equal.
        """
        last = self._seen
        while True:
            await asyncio.sleep(self._pause)
            now, before = self._look(), last
            if now == before and now != self._seen:
                break
            last = now
        changed = {path for path, _ in self._seen.items() ^ now.items()}
        self._seen = now
        return sorted(path.removeprefix(f"{self._directory}{os.sep}") for path in changed)

    def _look(self) -> _State:
        began = time.perf_counter()
        state = dict(_files(self._directory))
        self._pause = max(POLL_SECONDS_MIN, (time.perf_counter() - began) / _SHARE_MAX)
        return state


def _files(folder: str | Path) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # it has gone
        return
    for entry in entries:
        if (
            entry.name in _IGNORED
            or entry.name.startswith(".")
            or entry.name.endswith(("~", ".md"))
        ):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path)
            continue
        try:
            status = entry.stat()
        except OSError:
            continue
        yield entry.path, (status.st_mtime_ns, status.st_size)
