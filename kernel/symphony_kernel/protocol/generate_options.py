"""The options of `generate`: those of `pred`, and its length, stop tokens and read-ahead.

A generation gives one record a step. So options of `pred` for several tokens, or for something
other than a token, are refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    FILE_ENTRIES_MAX,
    GENERATE_AHEAD_DEFAULT,
    GENERATE_AHEAD_MAX,
    GENERATE_STOP_MAX,
    PRED_OPTIONS_BYTES_MAX,
)
from symphony_kernel.protocol.pred_options import (
    CACHED_BYTES_MAX,
    DEFAULT,
    Get,
    PredOptions,
    check_flag,
    check_integer,
    invalid,
    options_of,
    unpack_options,
)

_TOKEN_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """Checked options. `pred` are each step's options; `pred is DEFAULT` if none is set."""

    pred: PredOptions = DEFAULT
    tokens_max: int = FILE_ENTRIES_MAX + 1  # more than a file can hold
    stop: frozenset[int] = frozenset()  # ids below 2**32
    ahead: int = GENERATE_AHEAD_DEFAULT  # tokens appended before the program has taken them
    # Kept apart from `pred`, whose default each token's row is made for.
    share: bool = False  # as a pred's, for the prompt
    lot: int = 1  # the ticket is ready at so many records, or at the end

    @property
    def gathered(self) -> int:
        """Records at which the ticket is ready. The kernel never stops before so many."""
        return min(self.lot, self.ahead + 1)


GENERATE_DEFAULT = GenerateOptions()


def parse_generate_options(data: bytes) -> GenerateOptions:
    """Return the options in msgpack `data`; the rest as `parse_pred_options`."""
    if not data:
        return GENERATE_DEFAULT
    if len(data) > PRED_OPTIONS_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"options of {len(data)} bytes")
    return _parse_cached(data) if len(data) <= CACHED_BYTES_MAX else _parse(data)


def _parse(data: bytes) -> GenerateOptions:
    options = unpack_options(data)
    own: dict[str, Any] = {
        name: read(options.pop(key)) for key, (name, read) in _READERS.items() if key in options
    }
    pred = options_of(options)
    _check(pred)
    return GenerateOptions(pred=DEFAULT if pred == DEFAULT else pred, **own)


_parse_cached = lru_cache(maxsize=4096)(_parse)


def _check(pred: PredOptions) -> None:
    if pred.get not in (Get.ARGMAX, Get.SAMPLE):
        raise invalid("get must be argmax or sample: a generation gives tokens")
    if pred.at != "last":
        raise invalid("at cannot be set: a generation gives a record for every token")
    if pred.parents is not None:
        raise invalid("parents cannot be set: a generation continues at the file's end")
    if not pred.keep:
        raise invalid("keep cannot be false: a generation keeps what it appends")


def _read_stop(value: Any) -> frozenset[int]:
    if not isinstance(value, list) or len(value) > GENERATE_STOP_MAX:
        raise invalid(f"stop must be a list of at most {GENERATE_STOP_MAX} token ids")
    if not all(type(token) is int and 0 <= token <= _TOKEN_MAX for token in value):
        raise invalid(f"a token id in stop must be from 0 to {_TOKEN_MAX}")
    return frozenset(value)


# Options of its own: the field that each is for, and what checks its value.
_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "max": ("tokens_max", partial(check_integer, low=1, high=_TOKEN_MAX, what="max")),
    "stop": ("stop", _read_stop),
    "ahead": ("ahead", partial(check_integer, low=0, high=GENERATE_AHEAD_MAX, what="ahead")),
    "share": ("share", partial(check_flag, what="share")),
    "lot": ("lot", partial(check_integer, low=1, high=GENERATE_AHEAD_MAX, what="lot")),
}
