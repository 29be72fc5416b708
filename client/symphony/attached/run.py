"""The run that an attached program's calls belong to.

`attach` opens it. Inside of its block the calls of this task, and of tasks that it starts, are the
run's. A run is at a server: files that are open there count towards its limits until they are
closed, or until it ends.
"""

import contextvars
import json
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any

from symphony.attached.calls import Calls
from symphony.attached.connection import Connection
from symphony.attached.facts import Facts, Info
from symphony.attached.place import find_server

_current: "contextvars.ContextVar[AttachedRun]" = contextvars.ContextVar("symphony_run")
_NONE = "no run is attached: make calls inside of `async with symphony.attach():`"


class AttachedRun:
    """A run whose program is in this process; `attach` opens one."""

    def __init__(self, calls: Calls, left: Mapping[str, Any], info: Info, *, parks: bool) -> None:
        self.calls = calls
        self.parks = parks
        self.facts = Facts(info)
        self._left: dict[int, str] = dict(left["files"])
        self._next_file = max(self._left, default=0) + 1

    @property
    def id(self) -> str:
        """The run's id, to take it up again."""
        return self.calls.connection.run

    def take_left(self) -> dict[int, str]:
        """Return the files that an earlier client has left open, and their labels; once."""
        left, self._left = self._left, {}
        return left

    def new_file(self) -> int:
        """Return a number for a file."""
        number = self._next_file
        self._next_file += 1
        return number

    async def detach(self) -> None:
        """Leave the run: it stays if it parks, with its files, and else it ends."""
        await self.calls.close(exits=False)

    async def end(self) -> None:
        """End the run; what it holds is free."""
        await self.calls.close(exits=True)


class attach:  # noqa: N801 - used as a function
    """Open a run whose program is in this process: await it, or use it with `async with`.

    `run`: take up a parked run, in place of starting one. `server` and `key` are found as the
    command line does without them. `park`: the run outlives this process, up to its limits; else
    it ends when the connection does. `limits`, `model` and `priority` are those of any run.

    Raises AttachError: no server is there, or it refuses.
    """

    def __init__(
        self,
        run: str | None = None,
        *,
        server: str | None = None,
        key: str | None = None,
        park: bool = False,
        limits: Mapping[str, int] | None = None,
        model: str | None = None,
        priority: int | None = None,
        trace: bool = False,
    ) -> None:
        self._place, self._parks = (server, key), park
        given = {
            "run": run,
            "park": "1" if park else None,
            "limits": json.dumps(dict(limits)) if limits else None,
            "model": model,
            "priority": None if priority is None else str(priority),
            "trace": "1" if trace else None,
        }
        self._query = {name: value for name, value in given.items() if value is not None}
        self._run: AttachedRun | None = None
        self._token: contextvars.Token[AttachedRun] | None = None

    async def _open(self) -> AttachedRun:
        url, key = find_server(*self._place)
        connection = await Connection.open(url, key, self._query)
        calls = Calls(connection)
        try:
            left, info = await calls.greet()
        except BaseException:
            await calls.close(exits=False)
            raise
        return AttachedRun(calls, left, info, parks=self._parks)

    def __await__(self) -> Generator[Any, None, AttachedRun]:
        run = yield from self._open().__await__()
        _current.set(run)
        return run

    async def __aenter__(self) -> AttachedRun:
        self._run = await self._open()
        self._token = _current.set(self._run)
        return self._run

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._run is not None
        assert self._token is not None
        _current.reset(self._token)
        await (self._run.detach() if self._run.parks else self._run.end())


def current() -> AttachedRun:
    """Return the run of this task's calls; RuntimeError: none is attached."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError(_NONE) from None
