"""A run in its worker: limits that its instances share, and what counts."""

from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limit_table import UNKEPT_OUTPUT, run_defaults
from symphony_kernel.protocol.limits import (
    INSTANCE_HANDLES_MAX,
    RUN_MEMORY_BYTES_MAX,
    RUN_RESULT_BYTES_MAX,
    RUN_TICKETS_MAX,
    TABLE_ELEMENTS_MAX,
    TENANT_MEMORY_TOTAL_BYTES_MAX,
)

from symphony_runtime.worker.fairness.run_queue import TenantShare
from symphony_runtime.worker.fairness.tenant_memory import NAME as MEMORY_TOTAL
from symphony_runtime.worker.limit_pool import LimitPool

EXITED, TRAPPED, KILLED, FAILED = "exited", "trapped", "killed", "failed"
# Exit codes of programs that did not exit, as in a shell.
_CODES = {EXITED: 0, TRAPPED: 134, KILLED: 137, FAILED: 70}

_DEFAULTS = run_defaults()
# What a lease grows by: small enough for a tree of hundreds of instances.
_TICKETS_BATCH, _RESULT_BYTES_BATCH, _HANDLES_BATCH = 32, 64 << 10, 32


class Ending(Exception):  # noqa: N818 - an end is no error
    """An instance's end. A handler raises it to end the instance, or the whole run."""

    def __init__(
        self, status: str, reason: str = "", *, code: int | None = None, whole_run: bool = False
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.whole_run = status, reason, whole_run
        self.code = _CODES[status] if code is None else code


def limit_broken(reason: str) -> Ending:
    return Ending(KILLED, reason, whole_run=True)


class Run:
    """Limits of a run and its children, and what counts towards them.

    `hits` counts the calls that each limit has refused (`limit_table`).
    """

    __slots__ = (
        "child_depth_max", "children", "children_max", "cpu_limit_ns", "cpu_ns", "handles", "hits",
        "id", "log_bytes", "log_bytes_max", "memory_bytes", "memory_limit", "memory_peak",
        "messages", "messages_max", "output_bytes", "output_bytes_max", "results", "share",
        "table_elements", "tickets", "tree_memory_max", "unkept", "unread_bytes", "wall_limit_ms",
    )  # fmt: skip

    def __init__(self, root: int, limits: dict[str, int], share: TenantShare | None = None) -> None:
        """Apply `limits` by name, and defaults for the rest; `share` is the tenant's.

        `memory_total_bytes` is the tenant's: its last run's value holds.
        """
        self.id = root
        self.share = share or TenantShare()
        self.share.memory.set_limit(limits.get(MEMORY_TOTAL, TENANT_MEMORY_TOTAL_BYTES_MAX))
        most = {**_DEFAULTS, **limits}
        self.wall_limit_ms = most["wall_ms"]
        self.cpu_limit_ns = most["cpu_ms"] * 1_000_000
        self.memory_limit = min(most["memory_bytes"], RUN_MEMORY_BYTES_MAX)
        self.tree_memory_max = most["tree_memory_bytes"]
        self.table_elements = min(most["table_elements"], TABLE_ELEMENTS_MAX)
        self.output_bytes_max, self.messages_max = most["output_bytes"], most["messages"]
        self.unkept = bool(limits.get(UNKEPT_OUTPUT))  # its client takes its own sends
        self.log_bytes_max = most["log_bytes"]
        self.children_max, self.child_depth_max = most["children"], most["child_depth"]
        self.tickets = LimitPool(
            "tickets", Errno.EAGAIN, most["tickets"], RUN_TICKETS_MAX, _TICKETS_BATCH
        )
        self.results = LimitPool(
            "result_bytes", Errno.ENOMEM, most["result_bytes"], RUN_RESULT_BYTES_MAX,
            _RESULT_BYTES_BATCH,
        )  # fmt: skip
        self.handles = LimitPool(
            "handles", Errno.EDQUOT, most["handles"], INSTANCE_HANDLES_MAX, _HANDLES_BATCH
        )
        self.cpu_ns = 0
        self.memory_bytes = self.memory_peak = 0
        self.output_bytes = self.messages = self.log_bytes = 0
        self.unread_bytes = 0  # sent, and not taken by the gateway yet
        self.children = 0  # started, and not joined yet by a live parent
        self.hits: dict[str, int] = {}

    def hit(self, limit: str) -> None:
        """Count that a limit refused a call."""
        self.hits[limit] = self.hits.get(limit, 0) + 1

    def count_output(self, length: int, *, by_child: bool = False) -> None:
        """Charge a message. Raise Ending if the run exceeds a limit."""
        if self.unkept and not by_child:
            return
        self.output_bytes += length
        self.messages += 1
        if self.output_bytes > self.output_bytes_max:
            raise limit_broken(f"output limit: it sent more than {self.output_bytes_max} bytes")
        if self.messages > self.messages_max:
            raise limit_broken(f"message limit: it sent more than {self.messages_max} messages")

    def count_memory(self, change: int, *, measured: bool = True) -> None:
        """Charge a change of memory. Raise Ending if the tree exceeds its limit."""
        self.memory_bytes += change
        if measured:
            self.memory_peak = max(self.memory_peak, self.memory_bytes)
        if self.memory_bytes > self.tree_memory_max:
            raise limit_broken(
                f"memory limit: it and its children hold more than {self.tree_memory_max} bytes"
            )
