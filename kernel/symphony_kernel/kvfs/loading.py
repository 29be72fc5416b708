"""Loading: what a file that comes from disk is in memory, before its K and V are."""

# A file and what fills it know each other's insides.
# ruff: noqa: SLF001
import numpy as np

from symphony_kernel.executor.base import Int32, UInt32
from symphony_kernel.kvfs.files import KVFile, Storage
from symphony_kernel.kvfs.lineage import Trail
from symphony_kernel.kvfs.pages import page_count
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

# Pages that need a frame for a moment: a file may be larger than the device.
_PAGES_AT_ONCE = 64
_FRAMES_SHARE = 8


def fill(
    storage: Storage,
    file: KVFile,
    tokens: UInt32,
    positions: Int32,
    plain: int,
    trail: Trail | None,
    *,
    give_up_frames: bool,
) -> None:
    """Give an empty file its entries ([n] each); afterwards its pages are in no tier.

    Their frames are given up, where there is a device.

    Raises:
        SyscallError: ENOMEM or EDQUOT, and nothing has changed.
    """
    assert file.length == 0
    file._allow_entries(len(tokens))
    try:
        _take_pages(storage, file, page_count(len(tokens)), give_up_frames)
    except SyscallError:
        file.truncate(0)
        raise
    slots = file._page_slots(np.arange(len(tokens)))
    storage.pool.tokens[slots] = tokens
    storage.pool.positions[slots] = positions
    file.length, file.plain = len(tokens), plain
    file.restore_lineage(trail)
    if plain < file.length:
        file._tie(plain - plain % PAGE_TOKENS)


def _take_pages(storage: Storage, file: KVFile, count: int, give_up_frames: bool) -> None:
    while count:
        some = min(count, _PAGES_AT_ONCE, 1 + storage.pool.frames // _FRAMES_SHARE)
        pages = storage.allocate(file.owner.live(), some, keep=(file,))
        file._extend(pages)
        if give_up_frames:
            storage.tiers.evict(pages, host=False)
        count -= some
