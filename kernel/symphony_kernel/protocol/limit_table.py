"""The limit table: every limit of a program, a run or a tenant, one row each.

    server's default and maximum  >=  a tenant's  >=  what a run asks for

`limits.py` has the numbers. A row has the limit's name everywhere (`limits` of a request and of a
configuration, the label of `limit_hits_total`, `limit` of a run), its default, the maximum that an
operator may set, and what happens when it is reached. docs/reference/limits.md is made from it
(`tools.limits_page`).

A run's children share its limits: every limit of a run applies to the whole tree.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from symphony_kernel.protocol import limits as n


class Scope(Enum):
    """What a limit applies to: usage is summed over it."""

    PROGRAM = "a program"
    RUN = "a run, its children included"
    INSTANCE = "an instance"
    TENANT = "a tenant"


@dataclass(frozen=True, slots=True)
class Limit:
    """One row. `default` None: unlimited; `ceiling` None: fixed."""

    name: str
    scope: Scope
    default: int | None
    ceiling: int | None  # the most that an operator may set
    what: str  # what is counted, and its unit
    enforced_by: str  # the roles that enforce it
    effect: str  # what happens when it is reached
    least: int = 1

    @property
    def by_run(self) -> bool:
        return self.scope is Scope.RUN and self.ceiling is not None


UNKEPT_OUTPUT: Final = "unkept_output"  # in `Start.limits`: no limit counts the run's own sends
HIT: Final = "hit:"  # prefix of a limit's name in the kernel's metrics of a tenant

_DAY_MS: Final = 86_400_000
_PAST_COUNTING: Final = 1 << 40

_RUN: Final = (
    Limit("wall_ms", Scope.RUN, n.RUN_WALL_MS_MAX, 7 * _DAY_MS, "milliseconds from start to end",
          "worker, gateway", "killed: `wall time limit`"),
    Limit("cpu_ms", Scope.RUN, n.RUN_CPU_MS_MAX, _DAY_MS,
          "milliseconds of a processor: guest code in slices of an epoch, and its calls",
          "worker", "killed: `cpu time limit`"),
    Limit("memory_bytes", Scope.RUN, n.RUN_MEMORY_BYTES_MAX, n.RUN_MEMORY_BYTES_MAX,
          "bytes of linear memory of each instance", "worker",
          "`memory.grow` gives -1; killed at the start: `memory limit`"),
    Limit("tree_memory_bytes", Scope.RUN, n.RUN_TREE_MEMORY_BYTES_MAX, 4 << 30,
          "bytes of linear memory of all instances, and of children's inputs", "worker",
          "killed: `memory limit: it and its children`"),
    Limit("table_elements", Scope.RUN, n.TABLE_ELEMENTS_MAX, n.TABLE_ELEMENTS_MAX,
          "elements of each table of an instance", "worker",
          "`table.grow` gives -1; killed at the start: `table limit`", least=0),
    Limit("tokens", Scope.RUN, n.RUN_TOKENS_MAX, _PAST_COUNTING, "tokens computed", "kernel",
          "EDQUOT, and killed: `the run has used up`"),
    Limit("kv_tokens", Scope.RUN, n.RUN_KV_TOKENS_MAX, 1 << 24,
          "KV entries held at once, in all tiers together", "kernel", "EDQUOT"),
    Limit("handles", Scope.RUN, 16 * n.INSTANCE_HANDLES_MAX, n.TENANT_HANDLES_MAX,
          f"open KV handles; of one instance at most {n.INSTANCE_HANDLES_MAX:,}", "worker",
          "EDQUOT"),
    Limit("tickets", Scope.RUN, 8 * n.RUN_TICKETS_MAX, 1 << 20,
          f"live tickets; of one instance at most {n.RUN_TICKETS_MAX:,}", "worker", "EAGAIN"),
    Limit("result_bytes", Scope.RUN, 4 * n.RUN_RESULT_BYTES_MAX, 1 << 30,
          "bytes of results that tickets hold or promise; of one instance at most "
          f"{n.RUN_RESULT_BYTES_MAX >> 20} MiB", "worker", "ENOMEM"),
    Limit("output_bytes", Scope.RUN, n.RUN_OUTPUT_BYTES_MAX, 64 << 20, "bytes of all sends",
          "worker, gateway", "killed: `output limit`"),
    Limit("messages", Scope.RUN, n.RUN_MESSAGES_MAX, 1 << 20, "sends; messages not received yet",
          "worker, gateway", "killed: `message limit`; 429 for messages to the run"),
    Limit("log_bytes", Scope.RUN, n.RUN_LOG_BYTES_MAX, 4 << 20, "bytes of the log, and 16 a line",
          "worker, gateway", "further lines are dropped, the log says so", least=0),
    Limit("inbox_bytes", Scope.RUN, n.RUN_INBOX_BYTES_MAX, 64 << 20,
          "bytes of the user's messages that are not received yet", "gateway", "429"),
    Limit("children", Scope.RUN, n.RUN_CHILDREN_MAX, 1_024, "live children",
          "worker, gateway, kernel",
          "EDQUOT", least=0),
    Limit("child_depth", Scope.RUN, n.RUN_CHILD_DEPTH_MAX, 32, "generations of children",
          "worker, kernel", "EDQUOT", least=0),
    Limit("channels", Scope.RUN, n.TENANT_CHANNELS_MAX, n.TENANT_CHANNELS_MAX,
          "names of channels that it uses in total", "gateway", "EDQUOT", least=0),
)  # fmt: skip

_PROGRAM: Final = (
    Limit("program_bytes", Scope.PROGRAM, n.PROGRAM_BYTES_MAX, n.PROGRAM_BYTES_MAX,
          "bytes of the module", "gateway", "413"),
    Limit("program_source_bytes", Scope.PROGRAM, n.PROGRAM_SOURCE_BYTES_MAX, None,
          "bytes of a program that is uploaded as source", "gateway", "413"),
    Limit("program_functions", Scope.PROGRAM, n.PROGRAM_FUNCTIONS_MAX, n.PROGRAM_FUNCTIONS_CEILING,
          "functions that it defines", "compiler", "400"),
    Limit("compile_cpu_ms", Scope.PROGRAM, 1_000 * n.COMPILE_CPU_SECONDS_MAX,
          1_000 * n.COMPILE_CPU_SECONDS_CEILING,
          "milliseconds of processor time of compiling, rounded up to seconds; its wall time is "
          f"limited to {n.COMPILE_WALL_TIMES_CPU} times that", "compiler", "400", least=1_000),
    Limit("compile_memory_bytes", Scope.PROGRAM, n.COMPILE_MEMORY_BYTES_MAX,
          n.COMPILE_MEMORY_BYTES_CEILING, "bytes of memory that compiling takes", "compiler", "400",
          least=n.COMPILE_MEMORY_BYTES_MIN),
    Limit("stack_bytes", Scope.INSTANCE, n.GUEST_STACK_BYTES, None, "bytes of stack", "worker",
          "trapped: `stack overflow`"),
    Limit("tables", Scope.INSTANCE, n.TABLES_MAX, None, "tables", "worker",
          "killed at the start: `table limit`"),
    Limit("input_bytes", Scope.RUN, n.RUN_INPUT_BYTES_MAX, None,
          "bytes of a run's input, or of a child's", "gateway, worker", "413; EFBIG"),
    Limit("message_bytes", Scope.RUN, n.MESSAGE_BYTES_MAX, None, "bytes of one message or item",
          "gateway, worker", "413; EFBIG"),
)  # fmt: skip

_TENANT: Final = (
    Limit("live_runs", Scope.TENANT, n.TENANT_RUNS_LIVE_MAX, n.RUNS_LIVE_MAX,
          "runs that have not ended", "gateway", "429"),
    Limit("memory_total_bytes", Scope.TENANT, n.TENANT_MEMORY_TOTAL_BYTES_MAX, 1 << 50,
          "bytes of linear memory of its instances, and of what their tables may grow to, in one "
          "worker", "worker", "`memory.grow` gives -1; killed at the start: `memory limit: the "
          "tenant's programs`"),
    Limit("programs", Scope.TENANT, n.TENANT_PROGRAMS_MAX, 1 << 20, "programs kept; names of them",
          "gateway", "older versions go; then 429"),
    Limit("programs_kept_bytes", Scope.TENANT, n.TENANT_PROGRAMS_KEPT_BYTES_MAX, 1 << 50,
          "bytes of the modules of programs kept", "gateway",
          "older versions go; then 429"),
    Limit("program_versions", Scope.TENANT, n.TENANT_PROGRAM_VERSIONS_MAX,
          n.TENANT_PROGRAM_VERSIONS_CEILING, "versions kept of each name", "gateway",
          "the least recently used goes"),
    Limit("compile_burst_ms", Scope.TENANT, 1_000 * n.COMPILE_BURST_SECONDS_MAX,
          1_000 * n.COMPILE_BURST_SECONDS_CEILING,
          "milliseconds of compiling at once while others have runs; "
          f"{n.COMPILE_BURST_BACK_SHARE:.0%} of the passing time are added again", "gateway",
          "compilers use idle processors only, for "
          f"{n.COMPILE_PATIENCE_SECONDS_MAX:.0f} s at most", least=1_000),
    Limit("requests_per_second", Scope.TENANT, 5_000, 1_000_000,
          "requests; as many may come at once", "gateway", "429"),
    Limit("tokens_per_minute", Scope.TENANT, None, _PAST_COUNTING,
          "tokens computed; as many may be computed at once", "kernel, gateway",
          "preds wait; 429 on the OpenAI routes"),
    Limit("tenant_channels", Scope.TENANT, n.TENANT_CHANNELS_MAX, 1 << 16, "channels in use",
          "gateway", "EDQUOT"),
    Limit("tenant_channel_bytes", Scope.TENANT, n.TENANT_CHANNEL_BYTES_MAX, 1 << 30,
          "bytes of items in channels", "gateway", "EAGAIN, past a send's deadline"),
    Limit("tenant_handles", Scope.TENANT, n.TENANT_HANDLES_MAX, 1 << 24,
          "open KV handles and grants", "kernel", "EDQUOT"),
    Limit("kv_files", Scope.TENANT, n.TENANT_FILES_MAX, 1 << 20, "live KV files", "kernel",
          "EDQUOT"),
    Limit("kv_names", Scope.TENANT, n.TENANT_NAMES_MAX, 1 << 20, "named KV files", "kernel",
          "EDQUOT"),
    Limit("kv_device_tokens", Scope.TENANT, None, _PAST_COUNTING, "KV entries on the device",
          "kernel", "EDQUOT"),
    Limit("kv_host_tokens", Scope.TENANT, None, _PAST_COUNTING, "KV entries in host memory",
          "kernel", "they are moved to disk, or recomputed", least=0),
    Limit("kv_disk_tokens", Scope.TENANT, None, _PAST_COUNTING, "KV entries in the disk tier",
          "kernel", "they are recomputed", least=0),
    Limit("file_bytes", Scope.TENANT, n.FILE_BYTES_MAX, 8 << 30, "bytes of an uploaded file",
          "gateway", "413"),
    Limit("files", Scope.TENANT, n.TENANT_FILES_KEPT_MAX, 1 << 20,
          "files kept: uploaded ones, results of batches, adapters", "gateway",
          "429; batches wait"),
    Limit("files_kept_bytes", Scope.TENANT, n.TENANT_FILES_KEPT_BYTES_MAX, 1 << 50,
          "bytes of these files", "gateway", "429; batches wait"),
    Limit("adapters", Scope.TENANT, n.TENANT_ADAPTERS_MAX, n.TENANT_ADAPTERS_CEILING,
          "LoRA adapters kept", "gateway", "429"),
    Limit("live_batches", Scope.TENANT, n.TENANT_BATCHES_LIVE_MAX, 1 << 12,
          "batches that have not ended", "gateway", "429"),
    Limit("batch_requests", Scope.TENANT, n.TENANT_BATCH_REQUESTS_MAX, 1 << 12,
          "requests of its batches that run at once", "gateway", "the next ones wait"),
    Limit("disk_bytes", Scope.TENANT, None, 1 << 50,
          "bytes in the data directory: programs and their machine code, runs, KV files, uploaded "
          "files, secrets; "
          "without a value at most as many as the tenant leaves for others; and as many of KV "
          "pages in the disk tier", "kernel, gateway",
          "429; killed: `disk limit`", least=0),
    Limit("kv_durable_bytes", Scope.TENANT, n.TENANT_DURABLE_BYTES_MAX, 1 << 50,
          "bytes of durable KV files", "kernel", "EDQUOT; 429", least=0),
)  # fmt: skip

LIMITS: Final = (*_RUN, *_PROGRAM, *_TENANT)
BY_NAME: Final = {limit.name: limit for limit in LIMITS}
RUN_LIMITS: Final = tuple(limit for limit in LIMITS if limit.by_run)
# A tenant's limits that the kernel enforces. The gateway sends those that differ from the defaults.
KERNEL_TENANT_LIMITS: Final = tuple(
    limit.name for limit in _TENANT if limit.enforced_by.startswith("kernel")
)

# A tenant's limits that a worker enforces. They come with each run.
WORKER_TENANT_LIMITS: Final = tuple(
    limit.name for limit in _TENANT if limit.enforced_by == "worker"
)

# Limits of compiling a tenant's programs.
COMPILER_LIMITS: Final = (
    "program_functions", "compile_cpu_ms", "compile_memory_bytes", "compile_burst_ms",
)  # fmt: skip

# How the reason of a run begins that a limit has ended. Longer prefixes come first. A worker's
# reason is untrusted: only these beginnings name a limit.
REASONS: Final = (
    ("cpu time limit", "cpu_ms"),
    ("wall time limit", "wall_ms"),
    ("the run took longer", "wall_ms"),
    ("memory limit: it and its children", "tree_memory_bytes"),
    ("memory limit: the tenant's programs", "memory_total_bytes"),
    ("memory limit", "memory_bytes"),
    ("table limit: resource limit exceeded: table count", "tables"),
    ("table limit", "table_elements"),
    ("the run has used up", "tokens"),
    ("output limit", "output_bytes"),
    ("message limit", "messages"),
    ("disk limit", "disk_bytes"),
    ("stack overflow", "stack_bytes"),
)

assert len(BY_NAME) == len(LIMITS), "a limit has one row"
assert {limit for _, limit in REASONS} <= set(BY_NAME)
assert all(
    limit.default is None or limit.ceiling is None or limit.least <= limit.default <= limit.ceiling
    for limit in LIMITS
)


def limit_of(status: str, reason: str) -> str | None:
    """Return the limit that ended a run with this status and reason, or None."""
    if status not in ("killed", "trapped"):
        return None
    found = (limit for words, limit in REASONS if reason.startswith(words))
    return next(found, None)


def run_defaults() -> dict[str, int]:
    """Return the default limits of a run."""
    return {limit.name: limit.default for limit in RUN_LIMITS if limit.default is not None}
