"""Runs that a client is attached to, or that are parked until one takes them up.

    client ── WebSocket ──> api.runs.attached ── Deliver ──> the shipped program, in a worker
                                 ^                                │
                                 └──────────── Frames <── Output ─┘

Such a run is an ephemeral run of the shipped program, so it has a tenant's limits, rights and share
like any other. Its messages are answers to its one client and are kept nowhere.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from aiohttp import web

from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.programs.shipped import shipped_wasm
from symphony_runtime.gateway.programs.store import Programs
from symphony_runtime.gateway.runs.events.inbox import Inbox
from symphony_runtime.gateway.runs.events.stream import EphemeralStream
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.record import RunRequest
from symphony_runtime.gateway.runs.service import Runs

NAME = "attached"
GONE = "its client went away"


class AttachedRun:
    """A run, the frames that its client has not got yet, and who sends them."""

    def __init__(self, run: Run, frames: Inbox) -> None:
        self.run, self.frames = run, frames
        self.parks = False  # without its client it stays
        self.sending: asyncio.Task[None] | None = None  # to its client, if one is there
        self._dismiss: Callable[[], None] = lambda: None

    def note_sent(self, size: int) -> None:
        """Let the program send as many bytes more."""
        assert isinstance(self.run.events, EphemeralStream)
        self.run.events.note_taken(size)

    async def take_up(
        self, send: Callable[[], Coroutine[Any, Any, None]], dismiss: Callable[[], None]
    ) -> "asyncio.Task[None]":
        """Send frames from now on; an earlier connection is dismissed, as this one may be."""
        while (earlier := self.sending) is not None:
            earlier.cancel()
            await asyncio.wait([earlier])
            if self.sending is earlier:
                self.sending = None
                self._dismiss()
        self._dismiss = dismiss
        self.sending = asyncio.create_task(send())
        return self.sending


class AttachedRuns:
    """All attached runs of this gateway."""

    def __init__(self, runs: Runs, programs: Programs) -> None:
        self.shipped = programs.shipped.add(NAME, partial(shipped_wasm, __package__, NAME))
        self._runs = runs
        self._live: dict[str, AttachedRun] = {}

    async def start(self, tenant: str, wanted: RunRequest) -> AttachedRun:
        """Start a run; Problem 429, 503 as for any."""
        frames, program = Inbox(), await self.shipped.program()
        run = await self._runs.start(program, wanted, tenant=tenant, listener=frames)
        attached = self._live[run.record.id] = AttachedRun(run, frames)
        run.over.add_done_callback(lambda _: self._live.pop(run.record.id, None))
        return attached

    async def find(self, tenant: str, run_id: str) -> AttachedRun:
        """Return a live run; Problem 404, or 409: it is not one that a client can take up."""
        attached = self._live.get(run_id)
        if attached is not None and attached.run.record.tenant == tenant:
            return attached
        await self._runs.find(tenant, run_id)
        detail = "the run is no attached program of this server, or it has ended"
        raise Problem(409, "not-attached", detail)

    def leave(self, attached: AttachedRun, sending: "asyncio.Task[None] | None") -> None:
        """Note that a connection has closed: the run ends, or is parked, if it was the last one."""
        if attached.sending is not sending:
            return  # another connection has taken the run up
        attached.sending = None
        if not attached.parks and not attached.run.ending:
            attached.run.unwanted = True
            self._runs.kill(attached.run, GONE)


ATTACHED = web.AppKey("attached", AttachedRuns)
