"""KV calls: handles are checked here; the files are in the kernel."""

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

_CALL_ENTRIES = 32  # copying so many entries costs the kernel about as much as a call
_SAVE_FLAGS = 7
_HINT_ARGUMENTS = (0, KV_KEEP_MS_MAX, 0, 0, KV_PRIORITY_MAX)  # the largest argument of each hint


def kv_create(instance: Instance) -> int | None:
    """Return a handle of an empty file, with all rights."""
    handle = instance.handles.allocate(ALL_RIGHTS)
    return instance.post_call(handle, Op.KV_CREATE, handle)


def kv_open(instance: Instance, path: int, path_len: int, rights: int) -> None:
    """Return a handle of a private view of a named file; suspends."""
    name = validation.path(instance, path, path_len)
    if rights > ALL_RIGHTS:
        raise SyscallError(Errno.EINVAL, f"rights {rights}")
    handle = instance.handles.allocate(0)

    def on_reply(reply: int) -> None:
        if reply >= 0:
            instance.handles.rights[handle] = reply
        else:
            instance.handles.close(handle)
        instance.resume(handle if reply >= 0 else reply)

    instance.ask_kernel(on_reply, Op.KV_OPEN, handle, name, rights)


def kv_fork(instance: Instance, kv: int) -> int | None:
    """Return a handle of a copy that shares pages, with the source's rights."""
    handle = instance.handles.allocate(instance.handles.require(kv, READ))
    return instance.post_call(handle, Op.KV_FORK, handle, kv)


def kv_extract(instance: Instance, kv: int, ranges: int, count: int) -> int | None:
    """Return a handle of a new file of the entries in (start, end) u32 pairs."""
    instance.fiber.check(ranges, 8 * count)
    rights = instance.handles.require(kv, READ)
    if count > EXTRACT_RANGES_MAX:
        raise SyscallError(Errno.EFBIG, f"{count} ranges, limit {EXTRACT_RANGES_MAX}")
    pairs = instance.fiber.read(ranges, 8 * count)
    handle = instance.handles.allocate(rights)
    ends = np.frombuffer(pairs, "<u4")
    entries = int(ends[1::2].sum(dtype=np.int64) - ends[::2].sum(dtype=np.int64))
    instance.unanswered += (count + max(entries, 0)) // _CALL_ENTRIES
    return instance.post_call(handle, Op.KV_EXTRACT, handle, kv, pairs)


def kv_append(instance: Instance, kv: int, source: int, start: int, end: int) -> int | None:
    instance.handles.require(kv, APPEND)
    instance.handles.require(source, READ)
    if start > end:
        raise SyscallError(Errno.EINVAL, f"from {start} to {end}")
    instance.unanswered += (end - start) // _CALL_ENTRIES
    return instance.post_call(0, Op.KV_APPEND, kv, source, start, end)


def kv_truncate(instance: Instance, kv: int, length: int) -> None:
    """Roll back to `length` entries; suspends: only the kernel knows the length."""
    instance.handles.require(kv, TRUNCATE)
    instance.suspend_on_kernel(int, Op.KV_TRUNCATE, kv, length)


def kv_len(instance: Instance, kv: int) -> None:
    instance.handles.require(kv, READ)
    instance.suspend_on_kernel(int, Op.KV_LEN, kv)


def kv_stat(instance: Instance, kv: int, pointer: int, capacity: int) -> None:
    """Write msgpack about the file; suspends."""
    instance.fiber.check(pointer, capacity)
    instance.handles.require(kv, READ)
    instance.suspend_on_kernel(_puts(instance, pointer, capacity), Op.KV_STAT, kv)


def kv_tokens(instance: Instance, kv: int, start: int, count: int, out: int) -> None:
    """Write tokens from entry `start`, and return their number; suspends."""
    instance.fiber.check(out, 4 * count)
    instance.handles.require(kv, READ)
    if count > FILE_ENTRIES_MAX:
        raise SyscallError(Errno.EFBIG, f"{count} tokens")
    puts = _puts(instance, out, 4 * count)
    instance.suspend_on_kernel(lambda reply: puts(reply) // 4, Op.KV_TOKENS, kv, start, count)


def kv_save(instance: Instance, kv: int, path: int, path_len: int, flags: int) -> None:
    """Name the file; suspends, for a durable file until it is on disk."""
    name = validation.path(instance, path, path_len)
    instance.handles.require(kv, SAVE)
    if flags & ~_SAVE_FLAGS:
        raise SyscallError(Errno.EINVAL, f"flags {flags}")
    instance.suspend_on_kernel(int, Op.KV_SAVE, kv, name, flags)


def kv_remove(instance: Instance, path: int, path_len: int) -> None:
    instance.suspend_on_kernel(int, Op.KV_REMOVE, validation.path(instance, path, path_len))


def kv_list(instance: Instance, prefix: int, length: int, pointer: int, capacity: int) -> None:
    """Write a msgpack list of the tenant's named files; suspends.

    An empty prefix lists all.
    """
    instance.fiber.check(pointer, capacity)
    instance.fiber.check(prefix, length)
    name = validation.text(instance, prefix, length, PATH_BYTES_MAX) if length else ""
    instance.suspend_on_kernel(_puts(instance, pointer, capacity), Op.KV_LIST, name)


def kv_list_after(
    instance: Instance,
    prefix: int,
    length: int,
    after: int,
    after_length: int,
    most: int,
    pointer: int,
    capacity: int,
) -> None:
    """Write at most `most` named files, from the first after a path; suspends."""
    instance.fiber.check(pointer, capacity)
    instance.fiber.check(prefix, length)
    instance.fiber.check(after, after_length)
    if not 0 < most <= LIST_ITEMS_MAX:
        raise SyscallError(Errno.EINVAL, f"from 1 to {LIST_ITEMS_MAX} files")
    name = validation.text(instance, prefix, length, PATH_BYTES_MAX) if length else ""
    first = validation.text(instance, after, after_length, PATH_BYTES_MAX) if after_length else ""
    instance.suspend_on_kernel(
        _puts(instance, pointer, capacity), Op.KV_LIST_AFTER, name, first, most
    )


def kv_offer(instance: Instance, kv: int) -> None:
    """Offer the file's whole pages to the tenant's prefix cache; suspends."""
    instance.handles.require(kv, READ)
    instance.suspend_on_kernel(int, Op.KV_OFFER, kv)


def kv_match(instance: Instance, tokens: int, count: int) -> None:
    """Return a handle of a file of the longest offered prefix; suspends."""
    instance.fiber.check(tokens, 4 * count)
    if count > PRED_TOKENS_MAX:
        raise SyscallError(Errno.EFBIG, f"{count} tokens, limit {PRED_TOKENS_MAX}")
    if not count:
        raise SyscallError(Errno.EINVAL, "no tokens")
    data = instance.fiber.read(tokens, 4 * count)
    handle = instance.handles.allocate(ALL_RIGHTS)

    def on_reply(reply: int) -> None:
        if reply < 0:
            instance.handles.close(handle)
        instance.resume(handle if reply >= 0 else reply)

    instance.ask_kernel(on_reply, Op.KV_MATCH, handle, data)


def kv_advise(instance: Instance, kv: int, hint: int, argument: int) -> int | None:
    """Advise where the file's pages should be."""
    instance.handles.require(kv, READ)
    if hint >= len(_HINT_ARGUMENTS):
        raise SyscallError(Errno.EINVAL, f"hint {hint}")
    if not 0 <= argument <= _HINT_ARGUMENTS[hint]:
        raise SyscallError(Errno.EINVAL, f"argument {argument} of hint {hint}")
    return instance.post_call(0, Op.KV_ADVISE, kv, hint, argument)


def kv_close(instance: Instance, kv: int) -> int | None:
    instance.handles.close(kv)
    return instance.post_call(0, Op.KV_CLOSE, kv)


def _puts(instance: Instance, pointer: int, capacity: int) -> Any:
    return lambda reply: validation.put(instance, pointer, capacity, reply)
