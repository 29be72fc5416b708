"""KV files: handles are checked against the mirror, the files themselves are the kernel's."""

from typing import Any

import numpy as np
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    EXTRACT_RANGES_MAX,
    FILE_ENTRIES_MAX,
    KV_KEEP_MS_MAX,
    KV_PRIORITY_MAX,
    LIST_ITEMS_MAX,
    PATH_BYTES_MAX,
    PRED_TOKENS_MAX,
)
from symphony_kernel.protocol.messages import Op

from symphony_runtime.worker.handles import ALL_RIGHTS, APPEND, READ, SAVE, TRUNCATE
from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.syscalls import validation

_CALL_ENTRIES = 32  # to copy, which cost the kernel about what a call does
_SAVE_FLAGS = 7
_HINT_ARGUMENTS = (0, KV_KEEP_MS_MAX, 0, 0, KV_PRIORITY_MAX)  # the largest, by hints


def kv_create(lip: Instance) -> int | None:
    """An empty file with all rights."""
    handle = lip.handles.allocate(ALL_RIGHTS)
    return lip.post(handle, Op.KV_CREATE, handle)


def kv_open(lip: Instance, path: int, path_len: int, rights: int) -> None:
    """A private view of a named file; suspends."""
    name = validation.path(lip, path, path_len)
    if rights > ALL_RIGHTS:
        raise SyscallError(Errno.EINVAL, f"rights {rights}")
    handle = lip.handles.allocate(0)

    def on_reply(reply: int) -> None:
        if reply >= 0:
            lip.handles.rights[handle] = reply
        else:
            lip.handles.close(handle)
        lip.resume(handle if reply >= 0 else reply)

    lip.ask_kernel(on_reply, Op.KV_OPEN, handle, name, rights)


def kv_fork(lip: Instance, kv: int) -> int | None:
    """A copy that shares pages, with its source's rights."""
    handle = lip.handles.allocate(lip.handles.require(kv, READ))
    return lip.post(handle, Op.KV_FORK, handle, kv)


def kv_extract(lip: Instance, kv: int, ranges: int, count: int) -> int | None:
    """A new file of the entries in (start, end) u32 pairs."""
    lip.fiber.check(ranges, 8 * count)
    rights = lip.handles.require(kv, READ)
    if count > EXTRACT_RANGES_MAX:
        raise SyscallError(Errno.EFBIG, f"{count} ranges, limit {EXTRACT_RANGES_MAX}")
    pairs = lip.fiber.read(ranges, 8 * count)
    handle = lip.handles.allocate(rights)
    ends = np.frombuffer(pairs, "<u4")
    entries = int(ends[1::2].sum(dtype=np.int64) - ends[::2].sum(dtype=np.int64))
    lip.unanswered += (count + max(entries, 0)) // _CALL_ENTRIES
    return lip.post(handle, Op.KV_EXTRACT, handle, kv, pairs)


def kv_append(lip: Instance, kv: int, source: int, start: int, end: int) -> int | None:
    """Entries of another file at the end of this one."""
    lip.handles.require(kv, APPEND)
    lip.handles.require(source, READ)
    if start > end:
        raise SyscallError(Errno.EINVAL, f"from {start} to {end}")
    lip.unanswered += (end - start) // _CALL_ENTRIES
    return lip.post(0, Op.KV_APPEND, kv, source, start, end)


def kv_truncate(lip: Instance, kv: int, length: int) -> None:
    """Roll back to `length` entries; suspends, because only the kernel knows how many there are."""
    lip.handles.require(kv, TRUNCATE)
    lip.suspend_on_kernel(int, Op.KV_TRUNCATE, kv, length)


def kv_len(lip: Instance, kv: int) -> None:
    """The number of entries; suspends."""
    lip.handles.require(kv, READ)
    lip.suspend_on_kernel(int, Op.KV_LEN, kv)


def kv_stat(lip: Instance, kv: int, pointer: int, capacity: int) -> None:
    """msgpack of what is known of the file; suspends."""
    lip.fiber.check(pointer, capacity)
    lip.handles.require(kv, READ)
    lip.suspend_on_kernel(_puts(lip, pointer, capacity), Op.KV_STAT, kv)


def kv_tokens(lip: Instance, kv: int, start: int, count: int, out: int) -> None:
    """Write tokens from entry `start`, return their number; suspends."""
    lip.fiber.check(out, 4 * count)
    lip.handles.require(kv, READ)
    if count > FILE_ENTRIES_MAX:
        raise SyscallError(Errno.EFBIG, f"{count} tokens")
    puts = _puts(lip, out, 4 * count)
    lip.suspend_on_kernel(lambda reply: puts(reply) // 4, Op.KV_TOKENS, kv, start, count)


def kv_save(lip: Instance, kv: int, path: int, path_len: int, flags: int) -> None:
    """Name the file; suspends, for a durable one until it is safe on disk."""
    name = validation.path(lip, path, path_len)
    lip.handles.require(kv, SAVE)
    if flags & ~_SAVE_FLAGS:
        raise SyscallError(Errno.EINVAL, f"flags {flags}")
    lip.suspend_on_kernel(int, Op.KV_SAVE, kv, name, flags)


def kv_remove(lip: Instance, path: int, path_len: int) -> None:
    """Take a name away; suspends."""
    lip.suspend_on_kernel(int, Op.KV_REMOVE, validation.path(lip, path, path_len))


def kv_list(lip: Instance, prefix: int, length: int, pointer: int, capacity: int) -> None:
    """msgpack list of the tenant's named files; suspends. An empty prefix lists all."""
    lip.fiber.check(pointer, capacity)
    lip.fiber.check(prefix, length)
    name = validation.text(lip, prefix, length, PATH_BYTES_MAX) if length else ""
    lip.suspend_on_kernel(_puts(lip, pointer, capacity), Op.KV_LIST, name)


def kv_list_after(
    lip: Instance,
    prefix: int,
    length: int,
    after: int,
    after_length: int,
    most: int,
    pointer: int,
    capacity: int,
) -> None:
    """At most so many of the tenant's named files, from the first behind a path; suspends."""
    lip.fiber.check(pointer, capacity)
    lip.fiber.check(prefix, length)
    lip.fiber.check(after, after_length)
    if not 0 < most <= LIST_ITEMS_MAX:
        raise SyscallError(Errno.EINVAL, f"from 1 to {LIST_ITEMS_MAX} files")
    name = validation.text(lip, prefix, length, PATH_BYTES_MAX) if length else ""
    first = validation.text(lip, after, after_length, PATH_BYTES_MAX) if after_length else ""
    lip.suspend_on_kernel(_puts(lip, pointer, capacity), Op.KV_LIST_AFTER, name, first, most)


def kv_offer(lip: Instance, kv: int) -> None:
    """Offer the file's whole pages to the tenant's prefix cache; suspends for the file's turn."""
    lip.handles.require(kv, READ)
    lip.suspend_on_kernel(int, Op.KV_OFFER, kv)


def kv_match(lip: Instance, tokens: int, count: int) -> None:
    """A file of the longest prefix of these tokens that was offered; suspends."""
    lip.fiber.check(tokens, 4 * count)
    if count > PRED_TOKENS_MAX:
        raise SyscallError(Errno.EFBIG, f"{count} tokens, limit {PRED_TOKENS_MAX}")
    if not count:
        raise SyscallError(Errno.EINVAL, "no tokens")
    data = lip.fiber.read(tokens, 4 * count)
    handle = lip.handles.allocate(ALL_RIGHTS)

    def on_reply(reply: int) -> None:
        if reply < 0:
            lip.handles.close(handle)
        lip.resume(handle if reply >= 0 else reply)

    lip.ask_kernel(on_reply, Op.KV_MATCH, handle, data)


def kv_advise(lip: Instance, kv: int, hint: int, argument: int) -> int | None:
    """A wish about where the file's pages live."""
    lip.handles.require(kv, READ)
    if hint >= len(_HINT_ARGUMENTS):
        raise SyscallError(Errno.EINVAL, f"hint {hint}")
    if not 0 <= argument <= _HINT_ARGUMENTS[hint]:
        raise SyscallError(Errno.EINVAL, f"argument {argument} of hint {hint}")
    return lip.post(0, Op.KV_ADVISE, kv, hint, argument)


def kv_close(lip: Instance, kv: int) -> int | None:
    """Close the handle."""
    lip.handles.close(kv)
    return lip.post(0, Op.KV_CLOSE, kv)


def _puts(lip: Instance, pointer: int, capacity: int) -> Any:
    return lambda reply: validation.put(lip, pointer, capacity, reply)
