"""MessagePack of strangers: looked over before anything is made of it.

A few bytes can claim a list of a hundred thousand items in each of a thousand levels, and a list is
made as long as it says it is. So what is longer than a moment's work is read once without making
anything, which shows whether everything is there that is claimed; then what is made is bounded by
the bytes, and by the number of lists and maps that the reader allows.
"""

from typing import Any, Final

import msgpack

_SMALL_BYTES: Final = 64  # of which nothing large can be made, whatever they claim


class _Counter:
    """Counts lists and maps as they are closed, and refuses one too many."""

    __slots__ = ("_left",)

    def __init__(self, most: int) -> None:
        self._left = most

    def __call__(self, container: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError("too many lists and maps")
        return container


def unpack_untrusted(
    data: bytes, containers_max: int, *, strict_map_key: bool = True, **lengths_max: int
) -> Any:
    """Return what is in `data`, which may hold `containers_max` lists and maps in all.

    `lengths_max` are msgpack's own: max_array_len and max_map_len, of each list and map.

    Raises:
        ValueError: it is damaged, incomplete, nested too deeply, or holds more than it may.
    """
    try:
        if len(data) > _SMALL_BYTES:
            reader = msgpack.Unpacker(read_size=len(data), max_buffer_size=len(data))
            reader.feed(data)
            reader.skip()
        count = _Counter(containers_max)
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=strict_map_key,
            list_hook=count,
            object_hook=count,
            **lengths_max,
        )
    except Exception as error:  # the library has many, some of them no ValueError
        raise ValueError(f"no msgpack: {error or type(error).__name__}") from error
