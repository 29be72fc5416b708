"""The classes that a snapshot of the kernel contains.

A snapshot has what calls have caused. What belongs to the process or the device is made anew: where
pages are, how far a step is, callbacks. A class that is in neither list is a KernelBug as soon as a
snapshot meets it. A new field of a listed class is in the snapshot without a change here.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from symphony_kernel.grammar.matcher import Constraint, GrammarMatcher
from symphony_kernel.journal.seeds import Seeds
from symphony_kernel.journal.snapshot import SnapshotClass
from symphony_kernel.kvfs import file, filesystem, quotas, storage, tenants
from symphony_kernel.kvfs.durable.names import Change, DurableNames, Load
from symphony_kernel.kvfs.expiry_queue import ExpiryQueue
from symphony_kernel.kvfs.lineage import book, origins, spans
from symphony_kernel.kvfs.name_tree import Name, NameTree
from symphony_kernel.kvfs.pages import pool, prefix_cache
from symphony_kernel.kvfs.tiers import advice
from symphony_kernel.processes.handles import Handle, HandleTable
from symphony_kernel.processes.table import Grant, Instance, ProcessTable, Run, Usage
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.generate_options import GENERATE_DEFAULT, GenerateOptions
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions, Sampling
from symphony_kernel.request import Request
from symphony_kernel.syscalls.adapters import AdapterLoad, Adapters, LoadedAdapter
from symphony_kernel.syscalls.dispatch import CallQueue
from symphony_kernel.syscalls.file_requests import FileRequests
from symphony_kernel.syscalls.grammar import ConstraintCalls, WaitingCall
from symphony_kernel.syscalls.pending import Call, CallContext, FileCall, Generation, Pred, RunAhead
from symphony_kernel.syscalls.validation import Ranges

Make = Callable[[], Any]
_STALE: Final = -1  # a file must look up its frames

# Constants that code compares with `is`.
CONSTANTS: Final[dict[str, object]] = {
    "pred options": DEFAULT,
    "generate options": GENERATE_DEFAULT,
    "advice": advice.NO_ADVICE,
}


def _as(value: Any, *names: str) -> dict[str, Make]:
    """Return makers that set each of these fields to `value`."""
    return dict.fromkeys(names, lambda: value)


def _no_pages() -> Any:
    return np.empty(0, np.int32)


# Objects that exist once, and exist already: only the other fields are filled in.
SINGLE: Final = (
    SnapshotClass(
        filesystem.KVFS,
        _as(
            None, "transfers", "pool", "quotas", "tiers", "limits", "prefix_cache", "lineages",
            "_storage", "eviction", "_copied_slots", "durable_references", "_pages_max",
        ),
    ),
    SnapshotClass(
        pool.PagePool,
        _as(
            None, "frames", "pages", "frame", "page", "unfilled", "frame_version", "absent",
            "copies", "on_freeing", "sentinels", "_free", "_spares", "_marks", "_on_freed",
            "each_references", "each_token", "each_position",
        ),
    ),
    SnapshotClass(quotas.Quotas, _as(None, "_now", "count_tiers", "unrecomputable_max")),
    SnapshotClass(
        prefix_cache.PrefixCache,
        _as(None, "pages_max", "_pool", "_quotas", "_now", "observer"),
    ),
    SnapshotClass(book.LineageBook, _as(None, "entries_max")),
    SnapshotClass(
        storage.Storage,
        _as(
            None, "pool", "quotas", "cache", "transfers", "tiers", "lineages", "observer",
            "make_free", "eviction_order", "on_edited", "usable",
        ),
    ),
    SnapshotClass(ProcessTable, _as(None, "_kvfs", "_scheduler", "_exceeded")),
    SnapshotClass(
        CallContext,
        _as(
            None, "kvfs", "processes", "scheduler", "entries_max", "reply", "draw_seed", "observer",
            "positions", "unsent",
        ),
    ),
    SnapshotClass(Seeds),
    SnapshotClass(ConstraintCalls, _as(None, *ConstraintCalls.OWN)),
    SnapshotClass(CallQueue, _as(None, *CallQueue.OWN)),
    SnapshotClass(DurableNames, _as(None, *DurableNames.OWN)),
    SnapshotClass(FileRequests, _as(None, *FileRequests.OWN)),
    SnapshotClass(Adapters, _as(None, *Adapters.OWN)),
)  # fmt: skip

# Classes of objects that are written with all their fields.
_WHOLE: Final = (
    tenants.Tenant, tenants.TenantLimits, NameTree, Name, ExpiryQueue, pool.NumberStack,
    advice.Advice, book.Lineage, book.KeptTrail, origins.Origins, spans.Trail, HandleTable, Handle,
    Grant, Run, Instance, Usage, Call, FileCall, Pred, WaitingCall, Change, Load, RunAhead, Ranges,
    PredOptions, GenerateOptions, Sampling, Get, Errno, LoadedAdapter, AdapterLoad,
)  # fmt: skip
MANY: Final = (
    *map(SnapshotClass, _WHOLE),
    SnapshotClass(quotas.TenantUsage, {**_as(0, "absent", "host", "disk"), "hits": dict}),
    SnapshotClass(prefix_cache._Tree, {"heap": list}),  # noqa: SLF001
    SnapshotClass(prefix_cache.Node, _as(False, "in_heap")),
    SnapshotClass(
        file.KVFile,
        {
            "_frames": _no_pages,
            **_as(_STALE, "_frame_version"),
            **_as(0, "_absent", "era", "root"),
            **_as(0.0, "computed_at"),
            **_as(False, "ranked"),
        },
    ),
    SnapshotClass(spans.Span, _as(None, "_reads")),
    SnapshotClass(Generation, _as(b"", "unsent")),
    SnapshotClass(Constraint, _as(None, "grammar")),
    SnapshotClass(
        GrammarMatcher,
        {
            **_as(None, "_matcher", "_prefix", "_generation"),
            **_as(0.0, "_deadline", "ended", "spent"),
            **_as(0, "_after_end", "_renewals"),
            **_as(b"", "_before"),
            **_as(False, "_retry"),
            "_text": list,
        },
    ),
    SnapshotClass(
        Request,
        {
            **_as(False, "reserved", "finished"),
            **_as(0, "placed", "computed"),
            **_as(None, "result", "recompute", "prompt"),
        },
    ),
)
