"""Loading: what a file that comes from disk is in memory, before its K and V are."""

# A file and what fills it know each other's insides.
# ruff: noqa: SLF001
import numpy as np

from symphony_kernel.executor.base import Int32, UInt32
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.lineage.spans import Trail
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.kvfs.storage import Storage
from symphony_kernel.protocol.errno import Errno, SyscallError


def fill(
    storage: Storage,
    file: KVFile,
    tokens: UInt32,
    positions: Int32,
    plain: int,
    trail: Trail | None,
    *,
    device: bool,
) -> None:
    """Give an empty file its entries ([n] each); afterwards its pages are in no tier.

    They take no frames, so that nobody makes way and a file may be larger than the device; but
    where there is none (`device`) a page is with a frame.

    Raises:
        SyscallError: ENOMEM or EDQUOT, and nothing has changed.
    """
    assert file.length == 0
    file._allow_entries(len(tokens))
    count = page_count(len(tokens))
    unrecomputable = file.would_be_tied(trail, count)
    file._extend(_take_pages(storage, file, count, device, unrecomputable))
    slots = file._page_slots(np.arange(len(tokens)))
    storage.pool.tokens[slots] = tokens
    storage.pool.positions[slots] = positions
    file.length, file.plain = len(tokens), plain
    file.restore_lineage(trail)
    if unrecomputable:
        file.tie()


def _take_pages(
    storage: Storage, file: KVFile, count: int, device: bool, unrecomputable: bool
) -> Int32:
    pool, account = storage.pool, file.owner.live()

    def check() -> None:
        storage.ledger.allow(account, count)
        if unrecomputable:
            storage.ledger.allow_tied(account, count)
        storage.leave_some(account, count)
        storage.find_pages(count)
        if count > pool.unused:
            raise SyscallError(Errno.ENOMEM, f"{count} pages wanted, {pool.unused} unused")

    storage.decide(check)
    pages = pool.allocate(count, frames=not device)
    storage.ledger.charge(account, pages)
    if device:
        storage.tiers.born_absent(pages)
    return pages
