"""Runs that are started once, however often they are asked for (see `idempotency`)."""

from collections.abc import Awaitable, Callable

from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.http.idempotency import Idempotency, Once
from symphony_runtime.gateway.runs.live_run import Run, new_run_id
from symphony_runtime.gateway.runs.record import Record
from symphony_runtime.gateway.runs.service import Runs

Start = Callable[[str | None], Awaitable[Run]]  # with the id that the run is to have


async def start_once(
    keys: Idempotency, runs: Runs, once: Once | None, start: Start
) -> tuple[Run | Record, bool]:
    """Start a run, or find the one that an earlier request of the key started; True: it was.

    Raises:
        Problem: as `start` and `Idempotency.perform`; 410, the run has been deleted since.
    """
    if once is None:
        return await start(None), False

    async def act(run_id: str, again: bool) -> None:
        if not (again and await _find(runs, once.tenant, run_id)):
            await start(run_id)

    run_id, was_there = await keys.perform(once, new_run_id(), act)
    found = await _find(runs, once.tenant, run_id)
    if found is None:
        raise Problem(410, "gone", "the run of this key was deleted")
    return found, was_there


async def _find(runs: Runs, tenant: str, run_id: str) -> Run | Record | None:
    try:
        return await runs.find(tenant, run_id)
    except Problem:
        return None
