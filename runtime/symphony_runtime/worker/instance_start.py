"""How an instance begins: what it must find, and what must have room."""

import time

from symphony_kernel.protocol.limits import WORKER_INSTANCES_MAX

from symphony_runtime.engine.fiber import Fiber, FiberHost, Program
from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.run import FAILED, FAILED_CODE, KILLED, KILLED_CODE, Ending


def give_fiber(
    host: FiberHost, instance: Instance, program: Program | None, entry: str, live: int
) -> None:
    """Give an instance its fiber, which has not run yet; `live` others are in this worker.

    Raises:
        Ending: there is none for it; nothing is held.
    """
    if program is None:
        raise _failed("the worker does not have the program")
    if live >= WORKER_INSTANCES_MAX:
        raise _failed("the worker is full")
    entry = entry or program.default_entry
    if entry not in program.entries:
        raise _failed(f"the program has no entry {entry}")
    run, memory = instance.run, instance.run.share.memory
    if not memory.admits(program.table_bytes):
        memory.refuse(instance)
        raise Ending(KILLED, KILLED_CODE, memory.refusal())
    began = time.perf_counter()
    instance.fiber = Fiber(host, program, entry, run.memory_limit, run.table_elements)
    memory.count(program.table_bytes)
    run.share.used_ns += int((time.perf_counter() - began) * 1e9)


def _failed(problem: str) -> Ending:
    return Ending(FAILED, FAILED_CODE, problem)
