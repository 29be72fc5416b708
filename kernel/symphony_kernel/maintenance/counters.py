"""All that a kernel counts, in one flat map: what the gateway is told."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from symphony_kernel.executor.base import Executor
from symphony_kernel.journal.recovery import JournalRecovery
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.processes.table import ProcessTable
from symphony_kernel.scheduler.scheduler import Scheduler
from symphony_kernel.scheduler.step_loop import StepLoop
from symphony_kernel.syscalls.table import Syscalls


def count_all(
    processes: ProcessTable,
    syscalls: Syscalls,
    scheduler: Scheduler,
    kvfs: KVFS,
    stepper: StepLoop,
    executor: Executor,
    workers: Iterable[str],
    recovery: JournalRecovery | None,
) -> dict[str, Any]:
    """Return the counters of these parts."""
    steps, files = scheduler.statistics(), kvfs.statistics()
    return {
        **asdict(processes.statistics()),
        **asdict(syscalls.statistics()),
        **{key: value for key, value in asdict(steps).items() if key != "queue"},
        "mean_batch_rows": steps.rows / steps.steps if steps.steps else 0.0,
        "mean_decode_rows": (steps.decode_rows / steps.decode_steps if steps.decode_steps else 0.0),
        **asdict(stepper.statistics),
        "computes": executor.computes,
        "compiled": hasattr(Scheduler, "__mypyc_attrs__"),
        **(recovery.statistics() if recovery else {"journal": False}),
        "workers": sorted(workers),
        "waiting": steps.queue.requests,
        "waiting_tokens": steps.queue.tokens,
        "lips_waiting": steps.queue.lips,
        "runs_computing": scheduler.runs_computing(),
        "pages": files.pool.pages,
        "pages_free": files.pool.free,
        "pages_shared": files.pool.shared,
        "files": files.files,
        "names": files.names,
        "copies": files.copied_slots,
        **{f"prefix_cache_{key}": value for key, value in asdict(files.prefix_cache).items()},
        **{f"tiers_{key}": value for key, value in asdict(files.tiers).items()},
    }
