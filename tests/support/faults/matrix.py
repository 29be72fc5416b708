"""Every operation meets every fault of storage; then kill -9, another start, and a look at all.

acknowledged          it is done, once, before and after the restart
not acknowledged      it is done or it is not, never by half, and may be asked again; the status
                      says what is wrong with the storage, and never 500
a killed gateway      a run that was live may have failed for it, unless its end was told
afterwards            the server starts, the database is whole
"""

import asyncio
import contextlib
import errno
import os
import signal
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from symphony import ConnectionFailed, ServerError

from tests.support.faults.faults import Faults, Kind, Mode
from tests.support.faults.operations import DIED, DONE, NOT_DONE, OPERATIONS, Clients, Operation
from tests.support.server.planting import plant
from tests.support.server.server import RunningServer, descendants, start_server

POINTS_MAX = 150  # of one operation; none comes near
Make = Callable[[Clients, int], Operation]
# A role that dies hundreds of times within seconds is started again at once.
_AT_ONCE = (
    "from symphony_runtime.supervisor import supervisor; supervisor._PAUSE_SECONDS = 0.05, 0.05"
)


@dataclass(frozen=True)
class Fault:
    """What storage does to one call, or to all from one call on."""

    name: str
    number: int = errno.EIO
    mode: Mode = Mode.ONCE
    kinds: Kind = Kind.ANY
    refusals: tuple[int, ...] = (503,)  # the statuses of what it refuses


FULL = Fault("full", errno.ENOSPC, Mode.ON, Kind.ROOM, (507,))
ERROR = Fault("error", errno.EIO)
SHORT = Fault("short", errno.ENOSPC, Mode.SHORT, Kind.WRITE, (503, 507))
KILLED = Fault("killed", mode=Mode.KILL)
FAULTS = FULL, ERROR, SHORT, KILLED


@dataclass
class Cell:
    """One operation that met a fault: how it was answered, and what the checker found."""

    operation: Operation
    at: int
    path: str  # of the call that met it
    status: int = 200  # 0: no answer
    words: str = ""
    kills: bool = False  # the process that made the call
    wrong: list[str] = field(default_factory=list)

    @property
    def acknowledged(self) -> bool:
        """Whether the client was told that it is done."""
        return self.status == 200

    def judge(self, state: str, when: str) -> None:
        """Note what is wrong with a state: the checker."""
        if self.kills and state == DIED:
            return  # as the contract says of runs that are live
        if self.acknowledged and state != DONE:
            self.wrong.append(f"{when}: acknowledged, and {state}")
        elif state not in (DONE, NOT_DONE):
            self.wrong.append(f"{when}: answered {self.status}, and {state}")
        elif self.operation.exact and self.status and not self.acknowledged and state == DONE:
            self.wrong.append(f"{when}: answered {self.status}, and done")

    def __str__(self) -> str:
        return (
            f"{self.operation.name}, call {self.at} ({self.path}), answered {self.status}"
            f" {self.words}: {'; '.join(self.wrong)}"
        )


class Matrix:
    """A server in `folder`, and the operations that it was asked for while storage failed."""

    def __init__(
        self, folder: Path, *, every: bool, planted: Mapping[str, str] | None = None
    ) -> None:
        """`planted` are changes of the server's processes, as `plant` takes them."""
        folder.mkdir()
        self._every = every  # fault point; else some of them
        self._data = folder / "data"
        self.faults = Faults(folder / "faults", self._data)
        changes = {"symphony_runtime.cli": _AT_ONCE, **(planted or {})}
        self._environment = self.faults.environment | plant(folder / "planted", changes)
        self.cells: list[Cell] = []
        self._numbers = count(1)
        self._server: RunningServer
        self._clients: Clients

    async def meet(self, fault: Fault, operations: Iterable[Make] = OPERATIONS) -> list[Cell]:
        """Let each operation meet the fault at each of its calls; return what became of each."""
        self._start()
        try:
            self._clients = Clients(self._server.client(), self._server.admin())
            async with self._clients.client, self._clients.admin:
                await self._clients.begin()
                for make in operations:
                    await self._meet(fault, make)
            await self._restart()
        finally:
            self.faults.disarm()
            self._kill()
        return self.cells

    async def _meet(self, fault: Fault, make: Make) -> None:
        for at in self._points():
            operation = make(self._clients, next(self._numbers))
            await operation.prepare()
            self.faults.arm(at, fault.number, fault.mode, fault.kinds)
            cell = Cell(operation, at, "", kills=fault.mode == Mode.KILL)
            try:
                async with asyncio.timeout(20):
                    await operation.act()
            except ServerError as error:
                cell.status, cell.words = error.status, str(error)[:120]
            except (ConnectionFailed, TimeoutError) as error:
                cell.status, cell.words = 0, str(error)[:120]
            calls, met, cell.path = self.faults.calls, self.faults.disarm(), self.faults.last
            if met:
                self.cells.append(cell)
                if cell.status not in (0, 200, *fault.refusals, *operation.refusals):
                    cell.wrong.append("refused with that status")
                await self._look(cell, fault)
            elif not cell.acknowledged:
                cell.wrong.append(f"refused without a fault: {cell.status} {cell.words}")
                self.cells.append(cell)
            if calls < at or (cell.wrong and not self._every):
                return  # one is enough: what waits for ever takes long
        assert not self._every, f"{make} has more than {POINTS_MAX} calls"

    def _points(self) -> Iterable[int]:
        return range(1, POINTS_MAX) if self._every else (*range(1, 7), *range(7, POINTS_MAX, 8))

    async def _look(self, cell: Cell, fault: Fault) -> None:
        """Storage is well again: look at what became of an operation, while the server lives."""
        if fault.mode == Mode.KILL:
            await self._server.wait_until_ready()
        with contextlib.suppress(ServerError):
            await cell.operation.settle()
        if fault.mode != Mode.KILL:  # whose states are those after the restart
            cell.judge(await _state(cell.operation), "at once")

    async def _restart(self) -> None:
        self._kill()
        assert "never retrieved" not in self._server.log.read_text()
        database = self._data / "symphony.sqlite"
        with contextlib.closing(sqlite3.connect(database)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        self._start()
        clients = self._clients
        clients.client, clients.admin = self._server.client(), self._server.admin()
        clients.seen.clear()
        async with clients.client, clients.admin:
            await self._server.wait_until_ready()
            for cell in self.cells:
                state = await _state(cell.operation)
                cell.judge(state, "after a restart")
                if not cell.acknowledged and not cell.wrong:
                    await self._ask_again(cell, state)

    async def _ask_again(self, cell: Cell, state: str) -> None:
        if state == NOT_DONE or cell.operation.again:
            try:
                await cell.operation.act()
                await cell.operation.settle()
            except ServerError as error:
                cell.wrong.append(f"asked again: {error}")
            else:
                state = await _state(cell.operation)
                if state != DONE and not (cell.kills and state == DIED):
                    cell.wrong.append(f"asked again: {state}")

    def _start(self) -> None:
        self._server = start_server(self._data, environment=self._environment)

    def _kill(self) -> None:
        process = self._server.process
        for pid in (process.pid, *descendants(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


async def _state(operation: Operation) -> str:
    """Return an operation's state; that the server cannot show what there is of it is one, too."""
    try:
        return await operation.state()
    except ServerError as error:
        return f"it cannot be shown: {error.status} {error}"
