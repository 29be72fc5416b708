"""The options of `pred`, parsed and checked in one place.

The worker checks them so that a program gets its errors at once. The kernel checks them again
because it does not trust the worker. Programs repeat the same few options, so parsed options are
cached by their bytes.
"""

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any, Final

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    ADAPTER_NAME_CHARACTERS_MAX,
    PRED_BIAS_MAX,
    PRED_LOGPROBS_MAX,
    PRED_OPTIONS_BYTES_MAX,
    PRED_OPTIONS_CONTAINERS_MAX,
    PRED_TOKENS_MAX,
    PRED_TOP_MAX,
    PRED_TREE_TOKENS_MAX,
)
from symphony_kernel.protocol.untrusted import unpack_untrusted

# What a mask forbade: how many tokens it allowed (u32), the probability of all others (f32), and
# the best token without it (u32) with its log-probability (f32).
FORBIDDEN_BYTES: Final = 16
_ADAPTER_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{ADAPTER_NAME_CHARACTERS_MAX - 1}}}")
CACHED_BYTES_MAX = 256  # larger options (trees, masks) differ from call to call


class Get(IntEnum):
    """What to compute from a place's distribution, and its bytes (little-endian)."""

    NONE = 0  # nothing
    ARGMAX = 1  # u32 token, f32 log-probability; then `logprobs` times the same, best first
    SAMPLE = 2  # as ARGMAX
    TOP = 3  # k times (u32, f32), best first
    OF = 4  # an f32 for each requested id
    LOGITS = 5  # vocab_size times f32
    HIDDEN = 6  # hidden_size times f32: the token's last hidden state, after the final norm


@dataclass(frozen=True, slots=True)
class Sampling:
    """`{"sample": {...}}`. top_k 0, top_p 1 and min_p 0 are off; temperature 0 is argmax."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None  # u64; None: the kernel draws one for the call


@dataclass(frozen=True, slots=True)
class PredOptions:
    """Checked options. Ids are below 2**32, but not checked against the vocabulary."""

    at: str | tuple[int, ...] = "last"  # "last", "all", or indices into the call's tokens
    get: Get = Get.ARGMAX
    sampling: Sampling | None = None  # with Get.SAMPLE
    top: int = 0  # with Get.TOP
    logprobs: int = 0  # with Get.ARGMAX and Get.SAMPLE: best tokens of the distribution
    of: tuple[int, ...] = ()  # with Get.OF
    bias: tuple[tuple[int, float], ...] = ()
    bias_mask: tuple[bytes, float] | None = None  # added to the tokens whose bit is set
    repetition: tuple[bytes, float] | None = None  # penalty of the tokens whose bit is set
    allow: bytes | None = None  # bit t%8 of byte t//8 allows token t
    parents: tuple[int, ...] | None = None
    keep: bool = True
    share: bool = False  # take pages from the prefix cache, and offer what is computed
    constraint: int = 0  # a handle; 0: none
    since: int | None = None  # the file's entry with which the text begins; None: as before
    # Set for traced runs, by no program: the record of a token ends with what a mask forbade.
    forbidden: bool = False
    # As a program gives it: an adapter's name. The kernel sets its identity instead.
    adapter: str = ""

    @property
    def shapes_logits(self) -> bool:
        """Whether the options change a distribution before anything is chosen."""
        masks = self.bias_mask, self.repetition, self.allow
        return bool(self.bias) or any(mask is not None for mask in masks)

    def places(self, count: int) -> int:
        """Return the number of places, for a call of `count` tokens."""
        if self.get is Get.NONE:
            return 0
        return 1 if self.at == "last" else count if self.at == "all" else len(self.at)

    def place_bytes(self, vocab_size: int, hidden_size: int) -> int:
        match self.get:
            case Get.ARGMAX | Get.SAMPLE:
                return 8 + 8 * self.logprobs + FORBIDDEN_BYTES * self.forbidden
            case Get.TOP:
                return 8 * self.top
            case Get.OF:
                return 4 * len(self.of)
            case Get.LOGITS:
                return 4 * vocab_size
            case Get.HIDDEN:
                return 4 * hidden_size
            case Get.NONE:
                return 0


DEFAULT: Final = PredOptions()


def parse_pred_options(data: bytes) -> PredOptions:
    """Return the options in msgpack `data` (empty: the defaults).

    Raises SyscallError: EINVAL for options that docs/reference/abi.md does not allow, EFBIG above
    the size limit.
    """
    if not data:
        return DEFAULT
    if len(data) > PRED_OPTIONS_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"options of {len(data)} bytes")
    return _parse_cached(data) if len(data) <= CACHED_BYTES_MAX else _parse(data)


def invalid(detail: str) -> SyscallError:
    """Return the error of an option that is not allowed."""
    return SyscallError(Errno.EINVAL, detail)


def unpack_options(data: bytes) -> dict[Any, Any]:
    """Return the map in `data`, with unchecked values; EINVAL."""
    try:
        options = unpack_untrusted(
            data,
            PRED_OPTIONS_CONTAINERS_MAX,
            strict_map_key=False,
            max_array_len=PRED_TOKENS_MAX,
            max_map_len=PRED_BIAS_MAX,
        )
    except ValueError as error:
        raise invalid(f"options: {error}") from error
    if not isinstance(options, dict):
        raise invalid("options must be a map")
    return options


def options_of(options: dict[Any, Any]) -> PredOptions:
    """Return the options in an unpacked map; EINVAL."""
    parsed: dict[str, Any] = {}
    for key, value in options.items():
        if key == "get":
            parsed |= _read_get(value)
        elif (reader := _READERS.get(key)) is not None:
            parsed[key] = reader(value)
        else:
            raise invalid(f"unknown option {key!r}")
    found = PredOptions(**parsed)
    if found.logprobs and found.get not in (Get.ARGMAX, Get.SAMPLE):
        raise invalid("logprobs is allowed only with get argmax or sample")
    if found.constraint and (found.at != "last" or found.parents is not None):
        raise invalid("a constraint is allowed only with at last and without parents")
    if found.share and (found.at != "last" or found.parents is not None or not found.keep):
        raise invalid("share is allowed only with at last and keep, and without parents")
    if found.since is not None and not found.constraint:
        raise invalid("since is allowed only with a constraint")
    if found.get is Get.HIDDEN and _shapes_logits(found):
        raise invalid(
            "get hidden has no distribution: no bias, bias_mask, repetition, allow or constraint"
        )
    return found


def _shapes_logits(options: PredOptions) -> bool:
    return bool(options.shapes_logits or options.constraint)


def _parse(data: bytes) -> PredOptions:
    return options_of(unpack_options(data))


_parse_cached = lru_cache(maxsize=4096)(_parse)


def check_integer(value: Any, low: int, high: int, what: str) -> int:
    """Return an option's value; EINVAL."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise invalid(f"{what} must be an integer from {low} to {high}")
    return value


def _number(value: Any, low: float, high: float, what: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise invalid(f"{what} must be a number")
    if not math.isfinite(value) or not low <= value <= high:
        raise invalid(f"{what} must be from {low} to {high}")
    return float(value)


def _read_at(value: Any) -> str | tuple[int, ...]:
    if value in ("last", "all"):
        return str(value)
    if not isinstance(value, list):
        raise invalid("at must be 'last', 'all' or a list of indices")
    # Checked all at once: there may be very many, and programs and the kernel wait for this.
    if not {int}.issuperset(map(type, value)):
        raise invalid("an index in at must be an integer")
    if value and not (min(value) >= 0 and max(value) < 2**31):
        raise invalid(f"an index in at must be from 0 to {2**31 - 1}")
    return tuple(value)


def _read_get(value: Any) -> dict[str, Any]:
    if value in ("argmax", "none", "logits", "hidden"):
        return {"get": Get[value.upper()]}
    if isinstance(value, dict) and len(value) == 1:
        ((key, argument),) = value.items()
        if key == "top":
            return {"get": Get.TOP, "top": check_integer(argument, 1, PRED_TOP_MAX, "top")}
        if key == "of" and isinstance(argument, list) and 0 < len(argument) <= PRED_BIAS_MAX:
            ids = tuple(check_integer(v, 0, 2**32 - 1, "an id in of") for v in argument)
            return {"get": Get.OF, "of": ids}
        if key == "sample" and isinstance(argument, dict):
            return {"get": Get.SAMPLE, "sampling": _sampling(argument)}
    raise invalid("get must be argmax, none, logits, hidden, {sample}, {top} or {of}")


def _sampling(options: dict[Any, Any]) -> Sampling:
    unknown = set(options) - {"temperature", "top_k", "top_p", "min_p", "seed"}
    if unknown:
        raise invalid(f"unknown sampling options {sorted(map(str, unknown))}")
    seed = options.get("seed")
    return Sampling(
        temperature=_number(options.get("temperature", 1.0), 0.0, 1e4, "temperature"),
        top_k=check_integer(options.get("top_k", 0), 0, 2**31 - 1, "top_k"),
        top_p=_number(options.get("top_p", 1.0), 0.0, 1.0, "top_p"),
        min_p=_number(options.get("min_p", 0.0), 0.0, 1.0, "min_p"),
        seed=None if seed is None else check_integer(seed, 0, 2**64 - 1, "seed"),
    )


def _read_bias(value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict) or len(value) > PRED_BIAS_MAX:
        raise invalid(f"bias must be a map of at most {PRED_BIAS_MAX} tokens")
    return tuple(
        (check_integer(t, 0, 2**32 - 1, "a token in bias"), _number(b, -1e30, 1e30, "a bias"))
        for t, b in value.items()
    )


def _read_bias_mask(value: Any) -> tuple[bytes, float]:
    if not isinstance(value, dict) or value.keys() != {"mask", "value"}:
        raise invalid("bias_mask must be a map of mask and value")
    mask, added = value["mask"], value["value"]
    if not isinstance(mask, bytes):
        raise invalid("a bias_mask's mask must be binary, a bit for each token of the vocabulary")
    return mask, _number(added, -1e30, 1e30, "a bias_mask's value")


def _read_repetition(value: Any) -> tuple[bytes, float]:
    if not isinstance(value, dict) or value.keys() != {"mask", "penalty"}:
        raise invalid("repetition must be a map of mask and penalty")
    mask, penalty = value["mask"], value["penalty"]
    if not isinstance(mask, bytes):
        raise invalid("a repetition's mask must be binary, a bit for each token of the vocabulary")
    return mask, _number(penalty, 1e-3, 1e3, "a repetition's penalty")


def _read_allow(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise invalid("allow must be binary, a bit for each token of the vocabulary")
    return value


def _read_parents(value: Any) -> tuple[int, ...]:
    if isinstance(value, bytes) and len(value) % 4 == 0:
        value = list(struct.unpack(f"<{len(value) // 4}i", value))
    if not isinstance(value, list) or not 0 < len(value) <= PRED_TREE_TOKENS_MAX:
        raise invalid(f"parents must be 1 to {PRED_TREE_TOKENS_MAX} integers")
    return tuple(check_integer(p, -1, i - 1, f"parent {i}") for i, p in enumerate(value))


def is_adapter_name(text: str) -> bool:
    return _ADAPTER_NAME.fullmatch(text) is not None


def _read_adapter(value: Any) -> str:
    if not isinstance(value, str) or not is_adapter_name(value):
        raise invalid(f"adapter must be a name of 1 to {ADAPTER_NAME_CHARACTERS_MAX} characters")
    return value


def check_flag(value: Any, what: str) -> bool:
    """Return an option's value; EINVAL."""
    if not isinstance(value, bool):
        raise invalid(f"{what} must be true or false")
    return value


# What checks the value of each option but `get`.
_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "adapter": _read_adapter,
    "at": _read_at,
    "logprobs": partial(check_integer, low=0, high=PRED_LOGPROBS_MAX, what="logprobs"),
    "bias": _read_bias,
    "bias_mask": _read_bias_mask,
    "repetition": _read_repetition,
    "allow": _read_allow,
    "parents": _read_parents,
    "keep": partial(check_flag, what="keep"),
    "share": partial(check_flag, what="share"),
    "constraint": partial(check_integer, low=1, high=2**31 - 1, what="constraint"),
    "since": partial(check_integer, low=0, high=2**31 - 1, what="since"),
}
