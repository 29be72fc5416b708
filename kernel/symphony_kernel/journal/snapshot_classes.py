"""What an image of the kernel holds: the classes of everything that outlives it.

Kept is what calls have brought about. Made anew is what belongs to the process or the device: where
pages lie, how far a step has come, who listens. A class that is in neither list is a KernelBug as
soon as an image meets it, and a field that one of these gains is kept without a word said here.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from symphony_kernel.grammar.matcher import Constraint, Guide
from symphony_kernel.journal.seeds import Seeds
from symphony_kernel.journal.snapshot import Kept
from symphony_kernel.kvfs import file, filesystem, quotas, storage, tenants
from symphony_kernel.kvfs import names as naming
from symphony_kernel.kvfs.durable.names import Change, Load, Saving
from symphony_kernel.kvfs.lineage import book, origins, spans
from symphony_kernel.kvfs.name_tree import Name, NameTree
from symphony_kernel.kvfs.pages import pool, prefix_cache
from symphony_kernel.kvfs.tiers import advice
from symphony_kernel.processes.handles import Handle, HandleTable
from symphony_kernel.processes.table import Grant, Instance, Lip, ProcessTable, Usage
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.generate_options import GENERATE_DEFAULT, GenerateOptions
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions, Sampling
from symphony_kernel.request import Work
from symphony_kernel.syscalls.dispatch import HeldCalls
from symphony_kernel.syscalls.file_requests import KvRequests
from symphony_kernel.syscalls.grammar import ConstraintCalls, Waiting
from symphony_kernel.syscalls.pending import Call, Generation, Pred, Turn, Turns
from symphony_kernel.syscalls.run_ahead import RunAhead
from symphony_kernel.syscalls.validation import Ranges

Make = Callable[[], Any]
_STALE: Final = -1  # of a file's frames: they must be looked up

# Constants that code compares with `is`.
CONSTANTS: Final[dict[str, object]] = {
    "pred options": DEFAULT,
    "generate options": GENERATE_DEFAULT,
    "advice": advice.NO_ADVICE,
}


def _as(value: Any, *names: str) -> dict[str, Make]:
    """Return what makes this value of each of these fields."""
    return dict.fromkeys(names, lambda: value)


def _no_pages() -> Any:
    return np.empty(0, np.int32)


# What there is once, and stays where it is: of these only some fields are filled in.
SINGLE: Final = (
    Kept(
        filesystem.KVFS,
        _as(
            None, "moves", "pool", "ledger", "tiers", "limits", "prefix_cache", "lineages",
            "_storage", "pressure", "_copied_slots", "under_way", "_pages_max",
        ),
    ),
    Kept(
        pool.PagePool,
        _as(
            None, "frames", "pages", "frame", "page", "hollow", "moved", "absent", "copies",
            "leaving", "sentinels", "_free", "_spares", "_marks", "_on_freed", "each_references",
            "each_token", "each_position",
        ),
    ),
    Kept(quotas.Ledger, _as(None, "_now", "count_tiers", "tied_room")),
    Kept(
        prefix_cache.PrefixCache,
        _as(None, "pages_max", "_pool", "_ledger", "_now", "evicted"),
    ),
    Kept(book.LineageBook, _as(None, "entries_max")),
    Kept(
        storage.Storage,
        _as(
            None, "pool", "ledger", "cache", "moves", "tiers", "lineages", "witness", "relief",
            "ranking", "edited", "usable",
        ),
    ),
    Kept(ProcessTable, _as(None, "_kvfs", "_scheduler", "_exceeded")),
    Kept(
        Turns,
        _as(
            None, "kvfs", "processes", "scheduler", "entries_max", "reply", "draw_seed", "witness",
            "positions", "untold",
        ),
    ),
    Kept(Seeds),
    Kept(ConstraintCalls, _as(None, *ConstraintCalls.OWN)),
    Kept(HeldCalls, _as(None, *HeldCalls.OWN)),
    Kept(Saving, _as(None, *Saving.OWN)),
    Kept(KvRequests, _as(None, *KvRequests.OWN)),
)  # fmt: skip

MANY: Final = (
    Kept(tenants.Tenant),
    Kept(tenants.TenantLimits),
    Kept(NameTree),
    Kept(Name),
    Kept(naming.Expiries),
    Kept(quotas.Account, {**_as(0, "absent", "host", "disk"), "hits": dict}),
    Kept(pool.NumberStack),
    Kept(prefix_cache._Tree, {"heap": list}),  # noqa: SLF001 - a part of the cache that is kept
    Kept(prefix_cache._Node, _as(False, "in_heap")),  # noqa: SLF001
    Kept(
        file.KVFile,
        {
            "_frames": _no_pages,
            **_as(_STALE, "_moved"),
            **_as(0, "_absent", "era", "root"),
            **_as(0.0, "computed_at"),
            **_as(False, "ranked"),
        },
    ),
    Kept(advice.Advice),
    Kept(book.Lineage),
    Kept(book.Verdict),
    Kept(origins.Origins),
    Kept(spans.Span, _as(None, "_reads")),
    Kept(spans.Trail),
    Kept(HandleTable),
    Kept(Handle),
    Kept(Grant),
    Kept(Lip),
    Kept(Instance),
    Kept(Usage),
    Kept(Call),
    Kept(Turn),
    Kept(Pred),
    Kept(Generation, _as(b"", "untold")),
    Kept(Waiting),
    Kept(Change),
    Kept(Load),
    Kept(Constraint, _as(None, "grammar")),
    Kept(
        Guide,
        {
            **_as(None, "_matcher", "_told", "_era"),
            **_as(0.0, "_until", "ended", "spent"),
            **_as(0, "_ended", "_late", "_renewals", "_state", "_state_era", "_stated"),
            **_as(b"", "_before"),
            **_as(False, "_again"),
            "_text": list,
        },
    ),
    Kept(RunAhead),
    Kept(Ranges),
    Kept(PredOptions),
    Kept(GenerateOptions),
    Kept(Sampling),
    Kept(Get),
    Kept(Errno),
    Kept(
        Work,
        {
            **_as(False, "reserved", "finished"),
            **_as(0, "placed", "computed", "passed"),
            **_as(None, "result", "rebuild"),
        },
    ),
)
