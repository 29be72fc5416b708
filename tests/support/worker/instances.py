"""Instances without a worker, for tests of the queues that they wait in."""

from types import SimpleNamespace
from typing import cast

from symphony_runtime.worker.fairness.run_queue import RunQueue
from symphony_runtime.worker.instance import Instance, Services
from symphony_runtime.worker.run import Run

_SERVICES = cast(Services, SimpleNamespace(now=lambda: 0.0))


def new_instance(
    turns: RunQueue, tenant: str, number: int, limits: dict[str, int] | None = None
) -> Instance:
    """Add the root of a tenant's new run to a queue that counts its instances."""
    share = turns.share_of(tenant)
    turns.add_instance(share)
    return Instance(_SERVICES, Run(number, limits or {}, share), number, b"")
