"""Arguments of syscalls: what a worker sent, checked before anything happens.

A worker runs code of tenants and is not trusted. Every function takes any value that msgpack can
carry and returns what its name says, or raises a SyscallError. A bool is not an integer here.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from symphony_kernel.executor.base import Int32, Int64, ModelInfo, UInt32
from symphony_kernel.processes.handles import ALL_RIGHTS
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.generate_options import GenerateOptions, parse_generate_options
from symphony_kernel.protocol.limit_table import BY_NAME, KERNEL_TENANT_LIMITS
from symphony_kernel.protocol.limits import (
    FILE_ENTRIES_MAX,
    NAME_BYTES_MAX,
    PRED_RESULT_BYTES_MAX,
    PRED_TOKENS_MAX,
)
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions, parse_pred_options

_U32: Final = np.dtype("<u4")
_I64_MAX: Final = (1 << 63) - 1


def integer(value: object, low: int = 0, high: int = _I64_MAX) -> int:
    if type(value) is not int or not low <= value <= high:
        raise SyscallError(Errno.EINVAL, f"expected an integer from {low} to {high}")
    return value


def rights(value: object) -> int:
    return integer(value, 0, ALL_RIGHTS)


def text(value: object) -> str | bytes:
    """Return a string that is not checked further; EINVAL."""
    if not isinstance(value, str | bytes):
        raise SyscallError(Errno.EINVAL, "expected a string")
    return value


def grant_name(value: object) -> str:
    """Return the name of a grant; EINVAL (empty, not UTF-8), ENAMETOOLONG."""
    given = text(value)
    if len(given) > NAME_BYTES_MAX:
        raise SyscallError(Errno.ENAMETOOLONG, f"a name has at most {NAME_BYTES_MAX} bytes")
    try:
        data = given.encode() if isinstance(given, str) else given
        name = data.decode()
    except UnicodeError as error:
        raise SyscallError(Errno.EINVAL, "a name must be UTF-8") from error
    if len(data) > NAME_BYTES_MAX:
        raise SyscallError(Errno.ENAMETOOLONG, f"a name has at most {NAME_BYTES_MAX} bytes")
    if not name:
        raise SyscallError(Errno.EINVAL, "a name must not be empty")
    return name


@dataclass(frozen=True, slots=True)
class Ranges:
    """Checked ranges of entries: `starts` and `counts` ([n] each), `total` entries."""

    starts: Int64
    counts: Int64
    total: int

    def entries(self, length: int) -> Int64:
        """Return the indices ([total]) in a file with `length` entries; EINVAL past it."""
        if len(self.starts) and int((self.starts + self.counts).max()) > length:
            raise SyscallError(Errno.EINVAL, f"a range ends after entry {length}")
        before = np.cumsum(self.counts) - self.counts
        entries: Int64 = np.repeat(self.starts - before, self.counts) + np.arange(self.total)
        return entries


def ranges(value: object) -> Ranges:
    """Return the ranges in bytes of (start, end) u32 pairs; EINVAL, EFBIG."""
    if not isinstance(value, bytes) or len(value) % 8:
        raise SyscallError(Errno.EINVAL, "ranges must be pairs of u32")
    if len(value) // 8 > FILE_ENTRIES_MAX:
        raise SyscallError(Errno.EFBIG, f"at most {FILE_ENTRIES_MAX} ranges")
    pairs = np.frombuffer(value, _U32).astype(np.int64).reshape(-1, 2)
    counts = pairs[:, 1] - pairs[:, 0]
    if len(counts) and int(counts.min()) < 0:
        raise SyscallError(Errno.EINVAL, "a range ends before it starts")
    total = int(counts.sum())
    if total > FILE_ENTRIES_MAX:
        raise SyscallError(Errno.EFBIG, f"a file has at most {FILE_ENTRIES_MAX} entries")
    return Ranges(pairs[:, 0], counts, total)


def one_range(start: object, end: object) -> Ranges:
    first, last = integer(start), integer(end)
    if last < first:
        raise SyscallError(Errno.EINVAL, "a range ends before it starts")
    if last - first > FILE_ENTRIES_MAX:
        raise SyscallError(Errno.EFBIG, f"a file has at most {FILE_ENTRIES_MAX} entries")
    return Ranges(np.array([first]), np.array([last - first]), last - first)


def only_token(value: object, vocab_size: int) -> int:
    """Return the token id of a call with exactly one; -1 of others; EINVAL."""
    if type(value) is not bytes or len(value) != 4:
        return -1
    token = value[0] | value[1] << 8 | value[2] << 16 | value[3] << 24
    if token >= vocab_size:
        raise SyscallError(Errno.EINVAL, f"no token has the id {token}")
    return token


def token_ids(value: object, model: ModelInfo) -> UInt32:
    """Return 1 to PRED_TOKENS_MAX token ids of the model ([n]); EINVAL, EFBIG."""
    if not isinstance(value, bytes) or not value or len(value) % 4:
        raise SyscallError(Errno.EINVAL, "tokens must be u32, at least one")
    if len(value) // 4 > min(PRED_TOKENS_MAX, model.max_context):
        raise SyscallError(Errno.EFBIG, f"{len(value) // 4} tokens in one call")
    tokens: UInt32 = np.frombuffer(value, _U32)
    highest = tokens.max()
    if highest >= model.vocab_size:
        raise SyscallError(Errno.EINVAL, f"no token has the id {highest}")
    return tokens


def positions(value: object, n: int, model: ModelInfo) -> Int32 | None:
    """Return n positions below max_context ([n]), or None for default ones; EINVAL."""
    if value is None:
        return None
    if not isinstance(value, bytes) or len(value) != 4 * n:
        raise SyscallError(Errno.EINVAL, f"positions must be {n} u32, or nil")
    given = np.frombuffer(value, _U32)
    if given.max() >= model.max_context:
        raise SyscallError(Errno.EINVAL, f"a position must be below {model.max_context}")
    return given.astype(np.int32)


def pred_options(value: object, n: int, model: ModelInfo) -> PredOptions:
    """Return the options of a pred of n tokens; EINVAL, EFBIG, ENOSYS."""
    if not isinstance(value, bytes):
        raise SyscallError(Errno.EINVAL, "options must be bytes")
    options = parse_pred_options(value)
    if options is not DEFAULT:
        _check_places(options, n)
        _check_vocabulary(options, model.vocab_size)
    size = options.place_bytes(model.vocab_size, model.hidden_size)
    if options.places(n) * size > PRED_RESULT_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"a result has at most {PRED_RESULT_BYTES_MAX} bytes")
    return options


def generate_options(value: object, model: ModelInfo) -> GenerateOptions:
    """Return the options of a generation; EINVAL, EFBIG, ENOSYS."""
    if not isinstance(value, bytes):
        raise SyscallError(Errno.EINVAL, "options must be bytes")
    options = parse_generate_options(value)
    _check_vocabulary(options.pred, model.vocab_size)
    if max(options.stop, default=0) >= model.vocab_size:
        raise SyscallError(Errno.EINVAL, f"a token in stop must be below {model.vocab_size}")
    return options


def _check_places(options: PredOptions, n: int) -> None:
    if isinstance(options.at, tuple) and (len(options.at) > n or max(options.at, default=0) >= n):
        raise SyscallError(Errno.EINVAL, f"at has at most {n} indices, each below {n}")
    if options.parents is not None and len(options.parents) != n:
        raise SyscallError(Errno.EINVAL, f"parents must be {n} integers")


def _check_vocabulary(options: PredOptions, vocab_size: int) -> None:
    if options.get is Get.TOP and options.top > vocab_size:
        raise SyscallError(Errno.EINVAL, f"top is at most {vocab_size}")
    if options.logprobs > vocab_size:
        raise SyscallError(Errno.EINVAL, f"logprobs is at most {vocab_size}")
    if options.of and max(options.of) >= vocab_size:
        raise SyscallError(Errno.EINVAL, f"an id in of is below {vocab_size}")
    if options.bias and max(token for token, _ in options.bias) >= vocab_size:
        raise SyscallError(Errno.EINVAL, f"a token in bias is below {vocab_size}")
    if options.bias_mask is not None and len(options.bias_mask[0]) != (vocab_size + 7) // 8:
        raise SyscallError(Errno.EINVAL, f"bias_mask has a bit for each of {vocab_size} tokens")
    if options.repetition is not None and len(options.repetition[0]) != (vocab_size + 7) // 8:
        raise SyscallError(Errno.EINVAL, f"repetition has a bit for each of {vocab_size} tokens")
    if options.allow is not None and len(options.allow) != (vocab_size + 7) // 8:
        raise SyscallError(Errno.EINVAL, f"allow has a bit for each of {vocab_size} tokens")


def tree_depths(parents: tuple[int, ...]) -> Int32:
    """Return each node's distance from the file's end ([n], 0 for a parent of -1)."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return np.array(depths, np.int32)


def tenant_limits(value: object) -> dict[str, int | None]:
    """Return a tenant's limits by name, as the gateway sends them; EINVAL."""
    if type(value) is not dict:
        raise SyscallError(Errno.EINVAL, "limits must be a map")
    for name, most in value.items():
        if name not in KERNEL_TENANT_LIMITS:
            raise SyscallError(Errno.EINVAL, f"no limit of a tenant is called {name!r}")
        if most is not None and (type(most) is not int or most < BY_NAME[name].least):
            raise SyscallError(Errno.EINVAL, f"{name} must be an integer, or nil")
    return value
