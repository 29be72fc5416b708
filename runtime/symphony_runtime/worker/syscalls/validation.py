"""Reads and checks a guest's arguments; every mistake is a SyscallError."""

from typing import Any

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    INSTANCE_HANDLES_MAX,
    MESSAGE_BYTES_MAX,
    NAME_BYTES_MAX,
    PATH_BYTES_MAX,
)
from symphony_kernel.protocol.untrusted import unpack_untrusted

from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.text.tokenizer import decode

_LIST_ITEMS, _MAP_KEYS = INSTANCE_HANDLES_MAX, 16  # of structured arguments
_CONTAINERS_MAX = INSTANCE_HANDLES_MAX + 2  # a map for each grant, their list, and the whole


def text(instance: Instance, pointer: int, length: int, length_max: int) -> str:
    """Return a non-empty UTF-8 string. Raise EFAULT, ENAMETOOLONG or EINVAL."""
    instance.fiber.check(pointer, length)
    if length > length_max:
        raise SyscallError(Errno.ENAMETOOLONG, f"{length} bytes, limit {length_max}")
    if not length:
        raise SyscallError(Errno.EINVAL, "an empty name")
    return decode(instance.fiber.read(pointer, length))


def name(instance: Instance, pointer: int, length: int) -> str:
    """Return the name of a grant or a channel."""
    return text(instance, pointer, length, NAME_BYTES_MAX)


def path(instance: Instance, pointer: int, length: int) -> str:
    """Return the path of a KV file."""
    return text(instance, pointer, length, PATH_BYTES_MAX)


def message(instance: Instance, pointer: int, length: int) -> bytes:
    """Return the bytes of one message. Raise EFAULT or EFBIG."""
    instance.fiber.check(pointer, length)
    if length > MESSAGE_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"{length} bytes, limit {MESSAGE_BYTES_MAX}")
    return instance.fiber.read(pointer, length)


def mapping(data: bytes, known: frozenset[str]) -> dict[str, Any]:
    """Return a msgpack map with only known keys. Raise EINVAL."""
    try:
        found = unpack_untrusted(
            data, _CONTAINERS_MAX, max_array_len=_LIST_ITEMS, max_map_len=_MAP_KEYS
        )
    except ValueError as error:
        raise SyscallError(Errno.EINVAL, str(error)) from error
    if not isinstance(found, dict) or not known.issuperset(found):
        raise SyscallError(Errno.EINVAL, f"not a map with keys of {sorted(known)}")
    return found


def put(instance: Instance, pointer: int, capacity: int, data: bytes) -> int:
    """Write a result if it fits into `capacity` bytes; return its length either way."""
    if len(data) <= capacity:
        instance.fiber.write(pointer, data)
    return len(data)


def put_tokens(instance: Instance, pointer: int, capacity: int, tokens: bytes) -> int:
    """Write u32 tokens if they fit; lengths count tokens."""
    if len(tokens) <= 4 * capacity:
        instance.fiber.write(pointer, tokens)
    return len(tokens) // 4
