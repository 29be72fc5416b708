"""Calls on names: open, save, remove and list, for programs and the gateway.

A call that waits for the disk is answered when `DurableNames` says so, every other call at once. A
waiting call is data: a method here and its arguments (`partial(self._saved, caller, seq)`).
"""

from functools import partial
from typing import Any, Final

import msgpack
import numpy as np

from symphony_kernel.kvfs.durable.names import DurableNames
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.name_tree import is_public, parse_path, parse_prefix
from symphony_kernel.kvfs.names import describe
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.processes.handles import READ
from symphony_kernel.processes.table import Instance
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import LIST_ITEMS_MAX
from symphony_kernel.syscalls.pending import Call, CallContext, Result
from symphony_kernel.syscalls.validation import text

SAVE_REPLACE: Final = 1
SAVE_DURABLE: Final = 2
SAVE_PUBLIC: Final = 4


class NameCalls:
    """Acts on the tree of names; arguments have been checked."""

    def __init__(self, kvfs: KVFS, durable_names: DurableNames, context: CallContext) -> None:
        self._kvfs = kvfs
        self._durable_names = durable_names
        self._context = context

    # -- Calls of programs ----------------------------------------------------------------------
    def open(self, call: Call, number: int, path: str, rights: int) -> Result | None:
        """Insert a handle on a view of a name; others' public files can only be read.

        Raises SyscallError: ENOENT, EDQUOT, EIO, EBADF.
        """
        caller = call.caller
        caller.handles.check_new(number)
        named = self._kvfs.named(caller.tenant.name, path)
        if named.error is not None:
            raise SyscallError(named.error, path)
        assert named.name is not None
        if not named.name.loaded:
            # If the name is replaced meanwhile, the new file is opened.
            done = partial(self._loaded, caller, call.seq, number, path, rights)
            self._durable_names.load(named, done)
            return None
        granted = rights & READ if is_public(path) else rights
        view = partial(self._kvfs.view, caller.tenant.name, named, path, caller.account)
        file = caller.open_file(number, granted, view)
        caller.usage.cached_tokens += file.length
        return granted

    def _loaded(
        self,
        caller: Instance,
        seq: int,
        number: int,
        path: str,
        rights: int,
        error: SyscallError | None,
    ) -> None:
        if caller.ended:
            return
        result: Result | None
        try:
            if error is not None:
                raise error
            result = self.open(Call(caller, seq), number, path, rights)
        except SyscallError as refusal:
            result = -refusal.errno
        if result is not None:
            self._context.answer(caller, seq, result)

    def save(self, call: Call, file: KVFile, path: str, flags: int) -> Result | None:
        """Give a file's present content a name; SyscallError as `DurableNames.save`."""
        at_once = self._durable_names.save(
            file,
            path,
            partial(self._ended, call.caller, call.seq),
            replace=bool(flags & SAVE_REPLACE),
            durable=bool(flags & SAVE_DURABLE),
            public=bool(flags & SAVE_PUBLIC),
        )
        return 0 if at_once else None

    def remove(self, call: Call, path: str) -> Result | None:
        """Remove a name; SyscallError as `DurableNames.remove`."""
        done = partial(self._ended, call.caller, call.seq)
        return 0 if self._durable_names.remove(call.caller.tenant.name, path, done) else None

    def _ended(self, caller: Instance, seq: int, error: SyscallError | None) -> None:
        self._context.answer(caller, seq, 0 if error is None else -error.errno)

    def list_names(
        self, call: Call, prefix: str, after: str = "", limit: int = LIST_ITEMS_MAX + 1
    ) -> tuple[int, Result]:
        """Return the number of names with a prefix that come after `after`, and the packed list.

        Raises SyscallError: EFBIG past LIST_ITEMS_MAX.
        """
        files = self._kvfs.listing(call.caller.tenant.name, prefix, after, limit)
        if len(files) > LIST_ITEMS_MAX:
            raise SyscallError(Errno.EFBIG, f"more than {LIST_ITEMS_MAX} files")
        return len(files), pack([file._asdict() for file in files])

    # -- Calls of the gateway -------------------------------------------------------------------
    def kv_list(
        self, tenant: str, prefix: Any = "", after: Any = "", limit: Any = LIST_ITEMS_MAX
    ) -> list[dict[str, Any]]:
        """Return at most `limit` named files with `prefix` that come after path `after`.

        Raises SyscallError: EINVAL, ENAMETOOLONG.
        """
        if type(limit) is not int or not 0 < limit <= LIST_ITEMS_MAX:
            raise SyscallError(Errno.EINVAL, f"limit must be from 1 to {LIST_ITEMS_MAX}")
        files = self._kvfs.listing(
            tenant, parse_prefix(text(prefix)), parse_prefix(text(after)), limit
        )
        return [file._asdict() for file in files]

    def kv_stat(self, tenant: str, path: Any) -> dict[str, Any]:
        """Return what is known of one named file; ENOENT, EINVAL, ENAMETOOLONG.

        In addition to a listing: shared pages, pages by tier (each by the fastest that has it), and
        bytes on disk.
        """
        parsed = parse_path(text(path))
        file = self._kvfs.named(tenant, parsed)
        assert file.name is not None
        where = np.bincount(self._kvfs.tiers.tier_of(file.pages), minlength=len(Tier))
        tiers = {tier.word: int(where[tier]) for tier in Tier}
        if not file.name.loaded:
            tiers[Tier.DISK.word] = page_count(file.name.entries)
        return {
            **describe(parsed, file)._asdict(),
            "shared": file.shared_pages,
            "tiers": tiers,
            "disk_bytes": file.name.size,
        }


def pack(value: Any) -> bytes:
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data
