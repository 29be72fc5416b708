"""Arguments of calls, by what they mean: good ones mostly, else near misses, else anything.

What a parameter means follows from its name in the ABI's table, so that a new call is fuzzed as
soon as it stands there. Data that pointers lead to (paths, tokens, options, maps) is laid out in
the guest's image before it starts.
"""

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgpack

from tests.fuzz.guest import EDGE, IMAGE_BYTES, MEMORY_BYTES, NONE, SCRATCH, Argument, number

VOCAB = 258  # of the model that cases run on
CONTEXT = 1_024
EDGES = (
    0, 1, 2, 3, 15, 16, 17, 255, 256, 4_095, 4_096, 65_535, 65_536, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, (1 << 32) - 4, MEMORY_BYTES - 1, MEMORY_BYTES, MEMORY_BYTES + 1,
)  # fmt: skip
_WIDE = (-(1 << 63), -2, -1, 0, 1, 5, 50, 1 << 32, (1 << 63) - 1)
PATHS = ("a", "a/b", "shared/c", "public/t0/p", "public/victim/kept", "p", "d/e/f/g")
GRANTS = ("g", "h", "grant")
CHANNELS = ("ring", "bell")
_HANDLE = 1 << 16  # the first handle of any instance, and what its generation adds


class Image:
    """The data of one guest, by kind: (address, length) of each piece."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._bytes = bytearray()
        self.pieces: dict[str, list[tuple[int, int]]] = {}
        for kind, make in _PIECES.items():
            for _ in range(_COPIES.get(kind, 2)):
                self.add(kind, make(rng))

    def add(self, kind: str, data: bytes) -> tuple[int, int]:
        """Lay out one piece, if it has room, and return where one of its kind is."""
        return self.lay(kind, mutated(self._rng, data) if self._rng.random() < 0.06 else data)

    def lay(self, kind: str, data: bytes) -> tuple[int, int]:
        """Lay out one piece as it is, if it has room, and return where one of its kind is."""
        if len(self._bytes) + len(data) <= IMAGE_BYTES:
            at = len(self._bytes)
            self._bytes += data.ljust(-(-len(data) // 8) * 8, b"\0")
            del self._bytes[IMAGE_BYTES:]
            self.pieces.setdefault(kind, []).append((at, len(data)))
        return self.pieces[kind][-1] if self.pieces.get(kind) else (0, 0)

    def pick(self, kind: str) -> tuple[int, int]:
        """Return the place of a piece of that kind, or now and then of any other."""
        if self._rng.random() < 0.03 or kind not in self.pieces:
            kind = self._rng.choice(sorted(self.pieces))
        return self._rng.choice(self.pieces[kind])

    def packed(self) -> bytes:
        return bytes(self._bytes)


def mutated(rng: Random, data: bytes) -> bytes:
    """Return the data with a few bytes changed, left out, put in, or repeated."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        what = rng.randrange(5)
        if what == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif what == 1 and at < len(out):
            out[at] = rng.choice((0, 0x7F, 0x80, 0xC1, 0xDF, 0xFF, rng.randrange(256)))
        elif what == 2:
            del out[at : at + rng.randint(1, 8)]
        elif what == 3:
            out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))
        else:
            out[at:at] = out[at : at + rng.randint(1, 16)]
    return bytes(out)


def stretches(length: int, sizes: Sequence[int]) -> list[slice]:
    """Return what may be left out of so many things, to make a case smaller: much first."""
    return [slice(at, at + size) for size in sizes for at in range(0, length, size)]


def shortened(whole: Any, at: int, sizes: Sequence[int]) -> Any:
    """Return a sequence without the `at`-th of its stretches; None: there are no more."""
    out = stretches(len(whole), sizes)
    return whole[: out[at].start] + whole[out[at].stop :] if at < len(out) else None


def least(case: Any, smaller: Callable[[Any, int], Any], matters: Callable[[Any], bool]) -> Any:
    """Return the smallest case that still matters; `smaller` as `sequences.smaller`."""
    at = 0
    while (less := smaller(case, at)) is not None:
        case, at = (less, at) if matters(less) else (case, at + 1)
    return case


# -- What pointers lead to -------------------------------------------------------------------------
def _u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def _tokens(rng: Random) -> bytes:
    count = rng.choice((1, 1, 1, 2, 4, 7, 15, 16, 17, 33, 64, 65, 140))
    most = VOCAB if rng.random() < 0.95 else VOCAB + 1
    return _u32(*(rng.randrange(most) for _ in range(count)))


def _positions(rng: Random) -> bytes:
    first = rng.choice((0, 0, 1, 5, 100, CONTEXT - 1, rng.randrange(CONTEXT)))
    return _u32(*(min(first + i, 0xFFFFFFFF) for i in range(rng.choice((1, 4, 140)))))


def _mask(rng: Random) -> bytes:
    size = -(-VOCAB // 8)
    return rng.choice((b"\xff" * size, bytes(size), b"\x0f" * size, b"\xff" * (size - 1)))


def _sampling(rng: Random) -> dict[str, Any]:
    every: dict[str, Any] = {
        "temperature": rng.choice((0, 0.7, 1, 5.0, -1, 1e9)),
        "top_k": rng.choice((0, 1, 40, 1 << 20, -1)),
        "top_p": rng.choice((0.0, 0.5, 1.0, 2)),
        "min_p": rng.choice((0.0, 0.1, 1.0)),
        "seed": rng.choice((0, 7, (1 << 64) - 1, -1)),
    }
    return {key: every[key] for key in every if rng.random() < 0.4}


def _get(rng: Random) -> Any:
    return rng.choice(
        ("argmax", "none", "argmax", "none", "logits", {"top": 3}, {"top": 1_024}, {"of": [1, 2]},
         {"of": [VOCAB]}, {"sample": _sampling(rng)}, {"sample": {"seed": 3}}, {"top": 0}, "best")
    )  # fmt: skip


def _options(rng: Random) -> dict[Any, Any]:
    options: dict[Any, Any] = {}
    if rng.random() < 0.7:
        options["get"] = _get(rng)
    if rng.random() < 0.15:
        options["at"] = rng.choice(("last", "all", [0], [0, 0], [], [3, 1], [200], [1 << 31]))
    if rng.random() < 0.25:
        options["bias"] = {0: rng.choice((-1e9, 3.5, float("nan"))), rng.randrange(VOCAB + 1): 1.0}
    for key in ("allow", "mask"):
        if rng.random() < 0.08:
            mask = _mask(rng)
            options |= {"allow": mask} if key == "allow" else {"bias_mask": {key: mask, "value": 2}}
    if rng.random() < 0.1:
        options["logprobs"] = rng.choice((0, 1, 20, 21))
    return options


def _pred_options(rng: Random) -> bytes:
    options = _options(rng)
    if rng.random() < 0.12:
        options["keep"] = rng.choice((True, False, 0))
    if rng.random() < 0.15:
        options["parents"] = [rng.randint(-1, i - 1) for i in range(rng.choice((1, 4, 7, 16)))]
    if rng.random() < 0.05:
        options |= {"constraint": rng.choice((0, 1, 2, 1 << 31)), "since": rng.choice((0, 4, 99))}
    if rng.random() < 0.03:
        options[rng.choice(("adapter", "nothing", 7))] = "x"
    return _packed(options)


def _generate_options(rng: Random) -> bytes:
    options = _options(rng) if rng.random() < 0.5 else {}
    options["max"] = rng.choice((1, 2, 5, 20, 40, 40, 0))
    if rng.random() < 0.4:
        options["ahead"] = rng.choice((0, 1, 2, 8, 64, 1_024, 1_025))
    if rng.random() < 0.3:
        options["stop"] = [rng.randrange(VOCAB) for _ in range(rng.choice((0, 1, 100)))]
    if rng.random() < 0.3:
        options["lot"] = rng.choice((1, 2, 9, 1_024, 0))
    return _packed(options)


def _spawn(rng: Random) -> bytes:
    child: dict[str, Any] = {"input": b""}  # the guest fills in what its children play
    if rng.random() < 0.2:
        child["entry"] = rng.choice(("child", "lip_main", "nothing", ""))
    if rng.random() < 0.1:
        child["program"] = rng.choice(("player", "unknown", None, 5))
    if rng.random() < 0.6:
        grants = rng.sample(GRANTS, rng.choice((1, 1, 2)))
        child["grants"] = [
            {"handle": _HANDLE + rng.randrange(3), "rights": rng.choice((1, 3, 31)), "name": name}
            for name in grants
        ]
    return _packed(child)


def _http(rng: Random) -> bytes:
    good = "http://example.com/"
    request: dict[str, Any] = {"url": rng.choice((good, good, good, "file:///x", "http://u:p@h/"))}
    if rng.random() < 0.3:
        request |= {
            "headers": {"a": rng.choice(("b", "\r\n", 5))},
            "timeout_ms": rng.choice((5, 0)),
        }
    return _packed(request)


def _tool(rng: Random) -> bytes:
    depth: Any = {"a": 1}
    for _ in range(rng.choice((0, 0, 1, 31, 40))):
        depth = {"a": depth}
    return _packed({"name": rng.choice(("s.t", "s.t", "s", "")), "arguments": depth})


def _chat(rng: Random) -> bytes:
    roles = rng.choice((["user"], ["system", "user", "assistant"], ["assistant"], []))
    return _packed([{"role": r, "content": rng.choice(("hi", "<|end|>", 5))} for r in roles])


def _chat_with(rng: Random) -> bytes:
    request: dict[str, Any] = {"messages": msgpack.unpackb(_chat(rng))}
    if rng.random() < 0.5:
        function = {"name": "f", "parameters": rng.choice(({}, {"<|end|>": "<|end|>"}, 5))}
        request["tools"] = rng.choice(([{"type": "function", "function": function}], [], 5))
    if rng.random() < 0.5:
        request["variables"] = rng.choice(({"a": "<|end|>"}, {"messages": 5}, {}, []))
    for flag in ("add_generation_prompt", "continue_final_message"):
        if rng.random() < 0.3:
            request[flag] = rng.choice((True, False, 5))
    return _packed(request)


def _ranges(rng: Random) -> bytes:
    pairs: list[int] = []
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        start = rng.choice((0, 0, 1, 4, 16, 30))
        pairs += [start, start + rng.choice((-1, 0, 1, 4, 16, 28))]
    return _u32(*(value & 0xFFFFFFFF for value in pairs))


def _packed(value: Any) -> bytes:
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


def piece(rng: Random, kind: str) -> bytes:
    """Return data of one kind, now and then a damaged one."""
    data = _PIECES[kind](rng)
    return mutated(rng, data) if rng.random() < 0.06 else data


def _one_of(*texts: str) -> Callable[[Random], bytes]:
    return lambda rng: rng.choice(texts).encode()


_PIECES: dict[str, Callable[[Random], bytes]] = {
    "path": _one_of(*PATHS),
    "grant": _one_of(*GRANTS),
    "channel": _one_of(*CHANNELS),
    "tokens": _tokens,
    "positions": _positions,
    "pred": _pred_options,
    "generate": _generate_options,
    "spawn": _spawn,
    "http": _http,
    "tool": _tool,
    "chat": _chat,
    "chat_with": _chat_with,
    "ranges": _ranges,
    "grammar": _one_of('{"type": "integer"}', "a+b", 'start: "x" start | "y"', "(", "{"),
    "text": _one_of("hello", "é", "\0", "a" * 300, ""),
}
_COPIES = {"path": 4, "tokens": 6, "positions": 3, "pred": 8, "generate": 4, "spawn": 3}

# What a call's pointers lead to; "out" is written to. Others lead to text.
POINTERS: dict[tuple[str, str], str] = {
    ("spawn", "ptr"): "spawn", ("http", "ptr"): "http", ("tool", "ptr"): "tool",
    ("chat", "ptr"): "chat", ("chat_with", "ptr"): "chat_with",
    ("constraint", "ptr"): "grammar", ("pred", "opts"): "pred",
    ("pred_claim", "opts"): "pred", ("generate", "opts"): "generate", ("kv_grant", "name"): "grant",
    ("kv_granted", "name"): "grant", ("channel_send", "name_ptr"): "channel",
    ("channel_recv", "name_ptr"): "channel", ("random", "ptr"): "out",
}  # fmt: skip
_BY_NAME = {
    "path": "path", "prefix": "path", "after": "path", "tokens": "tokens", "ranges": "ranges",
    "positions": "positions", "out": "out", "tickets_ptr": "tickets", "name": "grant",
}  # fmt: skip
_LENGTHS = frozenset({"len", "cap", "path_len", "name_len", "after_len", "opts_len", "n"})
_UNITS = {"tokens": 4, "positions": 4, "ranges": 8, "tickets": 4}
_HANDLES = {"kv": "kv", "src": "kv", "ticket": "ticket", "pid": "pid", "constraint": "constraint"}
_NUMBERS: dict[str, tuple[int, ...]] = {
    "level": (0, 1, 2, 3, 4), "code": (0, 1, -1), "ms": (0, 1, 2, 5, 10, 13, 50, 1_000),
    "timeout_ms": (0, 1, 5, 20, 200), "rights": (1, 3, 7, 31, 0, 32), "flags": (0, 1, 1, 2, 4, 8),
    "hint": (0, 1, 2, 3, 4, 5), "arg": (0, 1, 4, 7, 8, 1_000), "kind": (0, 1, 2, 3),
    "max": (1, 2, 4_096, 0), "start": (0, 0, 1, 4, 16, 30), "end": (0, 1, 4, 16, 28, 32, 64),
    "len": (0, 1, 4, 15, 16, 17, 40),
}  # fmt: skip


class Arguments:
    """Makes a call's arguments. `known` maps kinds of handles to the slots that hold them."""

    def __init__(self, rng: Random, image: Image) -> None:
        self._rng, self._image = rng, image
        self.known: dict[str, list[int]] = {"kv": [], "ticket": [], "pid": [], "constraint": []}
        self.stale: dict[str, list[int]] = {kind: [] for kind in self.known}

    def of(self, call: str, params: list[tuple[str, str]]) -> tuple[Argument, ...]:
        made: list[Argument] = []
        piece = ("", 0, 0)  # kind, address, length of the last pointer
        for index, (name, kind) in enumerate(params):
            after = params[index + 1][0] if index + 1 < len(params) else ""
            if name in _HANDLES:
                made.append(self.handle(_HANDLES[name]))
            elif self._is_pointer(call, name, after):
                piece = self._point(call, name, after)
                made.append(number(self._pointer(piece)))
            elif name in _LENGTHS and piece[0]:
                made.append(number(self._length(piece)))
            else:
                made.append(number(self._number(name, kind)))
        return tuple(made)

    def handle(self, kind: str) -> Argument:
        """Return a handle, a ticket, a pid: live mostly; stale, foreign, off by one, anything."""
        rng, known = self._rng, self.known[kind]
        odds = rng.random()
        if known and odds < 0.82:
            return rng.choice(known[-6:]), 0
        if self.stale[kind] and odds < 0.88:
            return rng.choice(self.stale[kind]), 0
        if known and odds < 0.93:
            return rng.choice(known), rng.choice((-1, 1, _HANDLE, -_HANDLE))
        first = _HANDLE if kind == "kv" else 1
        return NONE, rng.choice((first, first + 1, first + rng.randrange(40), *EDGES))

    # -- Within --------------------------------------------------------------------------------
    def _is_pointer(self, call: str, name: str, after: str) -> bool:
        if (call, name) in POINTERS or name in _BY_NAME:
            return True
        return name.endswith("ptr") or (name in ("opts",) and after in _LENGTHS)

    def _point(self, call: str, name: str, after: str) -> tuple[str, int, int]:
        kind = POINTERS.get((call, name)) or _BY_NAME.get(name) or "text"
        if kind == "out" or after == "cap":
            size = self._rng.choice((0, 1, 4, 8, 16, 64, 512, 4_096))
            return "out", self._rng.randrange(*SCRATCH) & ~7, size
        if kind == "positions" and self._rng.random() < 0.7:
            return kind, 0, 0  # none
        if kind == "tickets":
            at = self._rng.choice((SCRATCH[0], SCRATCH[0] + 4))
            return kind, at, 4 * self._rng.choice((0, 1, 1, 2, 3))
        at, length = self._image.pick(kind)
        return kind, at, length

    def _pointer(self, piece: tuple[str, int, int]) -> int:
        rng = self._rng
        if rng.random() < 0.93:
            return min(piece[1], SCRATCH[1] - piece[2]) if piece[0] == "out" else piece[1]
        if rng.random() < 0.5:  # over the memory's end, or just not
            return MEMORY_BYTES - piece[2] + rng.choice((0, 0, 1, -1, 4))
        return rng.choice((EDGE, *EDGES[-7:]))

    def _length(self, piece: tuple[str, int, int]) -> int:
        kind, _, size = piece
        rng, count = self._rng, size // _UNITS.get(kind, 1)
        if rng.random() < 0.9:
            return count
        if kind == "out":  # what is written must not reach the script
            return rng.choice((0, 1, 7, 1 << 31, (1 << 32) - 1, MEMORY_BYTES + 1))
        return rng.choice((max(count - 1, 0), count + 1, 2 * count, *EDGES))

    def _number(self, name: str, kind: str) -> int:
        rng = self._rng
        if name in _NUMBERS and rng.random() < 0.92:
            return rng.choice(_NUMBERS[name])
        if name in ("timeout_ms",):
            return rng.choice((0, 1, -2, -(1 << 63), 200))
        if kind == "i64":
            return rng.choice(_WIDE)
        return rng.choice((rng.randrange(40), *EDGES))
