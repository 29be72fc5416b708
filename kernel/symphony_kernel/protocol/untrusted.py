"""Bounded unpacking of untrusted MessagePack.

A few bytes can claim a list of 100,000 items in each of 1,000 levels, and msgpack allocates lists
as long as they claim to be. So longer data is first skipped without making objects, which shows
whether all claimed items exist. Then the objects are bounded by the bytes, and by the number of
lists and maps that the caller allows.
"""

from typing import Any, Final

import msgpack

_SMALL_BYTES: Final = 64  # so few bytes cannot become anything large


def unpack_untrusted(
    data: bytes, containers_max: int, *, strict_map_key: bool = True, **lengths_max: int
) -> Any:
    """Return the value in `data`, which may have `containers_max` lists and maps in all.

    `lengths_max` are msgpack's options max_array_len and max_map_len, for each list and map.
    ValueError: it is damaged, incomplete, nested too deeply, or exceeds a maximum.
    """
    left = iter(range(containers_max))

    def count(container: Any) -> Any:
        if next(left, None) is None:
            raise ValueError("too many lists and maps")
        return container

    try:
        if len(data) > _SMALL_BYTES:
            reader = msgpack.Unpacker(read_size=len(data), max_buffer_size=len(data))
            reader.feed(data)
            reader.skip()
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=strict_map_key,
            list_hook=count,
            object_hook=count,
            **lengths_max,
        )
    except Exception as error:  # the library has many types, not all of them ValueErrors
        raise ValueError(f"not msgpack: {error or type(error).__name__}") from error
