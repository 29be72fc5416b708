"""Chrome trace events: tracks, and spans on them."""

import heapq
from typing import Any

JsonObject = dict[str, Any]


class Picture:
    """The events of a trace. Times are seconds of the clock that `origin` is of."""

    def __init__(self, origin: float) -> None:
        self.events: list[JsonObject] = []
        self._origin = origin

    def track(self, pid: int, tid: int, name: str, what: str = "thread_name", **more: int) -> None:
        args = {"name": name, **more}
        self.events.append({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args})

    def span(
        self,
        where: tuple[int, int],
        kind: str,
        name: str,
        times: tuple[float, float],
        args: JsonObject | None = None,
    ) -> None:
        # Round to nanoseconds first: nested spans stay nested.
        began, ended = (round((at - self._origin) * 1e9) for at in times)
        pid, tid = where
        self.events.append(
            {
                "name": name,
                "cat": kind,
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": began / 1000,
                "dur": (ended - began) / 1000,
                "args": args or {},
            }
        )


class Tracks:
    """Tracks of a process on which spans follow each other: as few as possible."""

    def __init__(self, picture: Picture, process: int, first: int, name: str) -> None:
        self._picture, self._process, self._first, self._name = picture, process, first, name
        self._free: list[int] = []
        self._busy: list[tuple[float, int]] = []  # (end of the last span, track)
        self._count = 0

    def take(self, began: float, ended: float) -> tuple[int, int]:
        """Return the process and a free track; call it in order of `began`."""
        while self._busy and self._busy[0][0] <= began:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if self._free:
            track = heapq.heappop(self._free)
        else:
            track, self._count = self._first + self._count, self._count + 1
            self._picture.track(self._process, track, f"{self._name} {self._count}")
        heapq.heappush(self._busy, (ended, track))
        return self._process, track
