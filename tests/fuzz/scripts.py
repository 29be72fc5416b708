"""Scripts: what guests do. Single calls from the ABI's table, and courses of real programs."""

import struct
from collections.abc import Callable
from random import Random

import msgpack
from symphony_runtime.abi import WASI_CALLS, table

from tests.fuzz.guest import NONE, SCRATCH, Argument, Record, Script, number
from tests.fuzz.values import Arguments, Image

OUT = SCRATCH[0] + 64  # where courses take results
_PATIENCE_MS = 100_000  # of virtual time: a call that waits longer for the kernel was lost
_FOR_EVER = -1
# Calls whose result names something, and what closes it.
_MAKES = {
    "kv_create": "kv", "kv_fork": "kv", "kv_extract": "kv", "kv_open": "kv", "kv_match": "kv",
    "kv_granted": "kv", "constraint": "constraint", "recv": "ticket", "sleep": "ticket",
    "spawn": "ticket", "join": "ticket", "channel_recv": "ticket", "pred": "ticket",
    "generate": "ticket", "http": "ticket", "tool": "ticket",
}  # fmt: skip
_CLOSES = {"kv_close": "kv", "cancel": "ticket", "constraint_close": "constraint"}
# Names of WASI's parameters; where there are more, they are any number.
_WASI_NAMES: dict[str, tuple[str, ...]] = {
    "args_sizes_get": ("out", "out"), "environ_sizes_get": ("out", "out"),
    "clock_time_get": ("level", "arg", "out"), "random_get": ("out", "cap"),
    "fd_write": ("level", "out", "cap", "out"),
}  # fmt: skip
_WEIGHTS = {
    "exit": 0, "pred": 6, "pred_claim": 3, "generate": 2, "wait": 2, "claim": 3, "take": 3,
    "kv_create": 3,
}  # fmt: skip
_RARE = 0.12  # how often what ends a guest, or is not a call of `lip`, comes

Params = list[tuple[str, str]]


def _lip() -> dict[str, Params]:
    return {call.name: [(p.name, p.type) for p in call.params] for call in table().calls}


def _wasi() -> dict[str, Params]:
    found = {}
    for name, kind in WASI_CALLS.items():
        names = _WASI_NAMES.get(name, ()) + ("any",) * len(kind.params)
        found[f"wasi_snapshot_preview1.{name}"] = list(zip(names, kind.params, strict=False))
    return found


class Writer:
    """Writes one script of about `length` records."""

    def __init__(
        self, rng: Random, length: int, patient: bool = True, courses: "Courses | None" = None
    ) -> None:
        self.rng = rng
        self._courses = courses or _COURSES
        self.image = Image(rng)
        self.arguments = Arguments(rng, self.image)
        self.records: list[Record] = []
        self._length = length
        self._slot = 0
        self._lip, self._wasi = _lip(), _wasi()
        weights = {name: _WEIGHTS.get(name, 1) for name in self._lip}
        self._names, self._weights = list(weights), list(weights.values())
        self._wait_ms = _FOR_EVER if patient else _PATIENCE_MS

    def script(self, children: tuple[Script, ...] = ()) -> Script:
        """Return it; what it spawns plays one of `children`."""
        if children:
            self._give_input(children)
        while len(self.records) < self._length:
            if self.rng.random() < 0.25:
                self.rng.choice(self._courses)(self)
            else:
                self.any_call()
        return Script(tuple(self.records), self.image.packed())

    def any_call(self) -> None:
        rng = self.rng
        if rng.random() < _RARE:
            self._rare()
            return
        (name,) = rng.choices(self._names, self._weights)
        self.call(name, *self.arguments.of(name, self._lip[name]))

    def call(self, name: str, *arguments: Argument | int) -> int:
        """Write one call; return the slot of its result."""
        self._slot = (self._slot + 1) % 56  # the last ones count how often `again` was
        given = tuple(number(a) if isinstance(a, int) else a for a in arguments)
        self.records.append(Record(name, given, self._slot))
        known = self.arguments.known
        for slots in (*known.values(), *self.arguments.stale.values()):
            if self._slot in slots:
                slots.remove(self._slot)
        if name in _MAKES:
            known[_MAKES[name]].append(self._slot)
        closed = _CLOSES.get(name)
        if closed and given[0][0] in known[closed]:
            known[closed].remove(given[0][0])
            self.arguments.stale[closed].append(given[0][0])
        return self._slot

    def again(self, records: int, times: int) -> None:
        """Write that the last records are played so many times."""
        slot = 56 + self.rng.randrange(8)
        self.records.append(Record("again", (number(records), number(times)), slot))

    def pause(self) -> None:
        """Write that some time passes."""
        self.claim(self.call("sleep", self.rng.choice((1, 2, 5, 9, 10, 11, 13, 21, 50))))

    def claim(self, ticket: int, room: int = 4_096, at: int = OUT) -> int:
        """Write a wait for a ticket of the kernel's, which must come."""
        taken = self.call("claim", (ticket, 0), at, room, self._wait_ms)
        if ticket in self.arguments.known["ticket"]:
            self.arguments.known["ticket"].remove(ticket)
            self.arguments.stale["ticket"].append(ticket)
        return taken

    def piece(self, kind: str, data: bytes) -> tuple[int, int]:
        """Lay out data, now and then with faults; return address and length."""
        return self.image.add(kind, data)

    def _rare(self) -> None:
        rng = self.rng
        odds = rng.random()
        if odds < 0.7:
            name = rng.choice([n for n in self._wasi if not n.endswith("proc_exit")])
            self.call(name, *self.arguments.of(name, self._wasi[name]))
        elif odds < 0.8:
            self.call("grow", rng.choice((0, 1, 2, 9)))
        elif odds < 0.9:
            self.call("spin", rng.choice((10, 10_000, 300_000)))
        elif len(self.records) > self._length * 3 // 4:
            ends = (("exit", 3), ("trap",), ("wasi_snapshot_preview1.proc_exit", 1), ("spin", 0))
            name, *given = rng.choice(ends)
            self.call(str(name), *(int(value) for value in given))

    def _give_input(self, children: tuple[Script, ...]) -> None:
        """Let what is spawned play these, as far as the image has room for them."""
        for at, length in list(self.image.pieces.get("spawn", [])):
            try:
                options = msgpack.unpackb(self.image.packed()[at : at + length], raw=False)
            except ValueError:  # it was made a bad one
                continue
            if isinstance(options, dict):
                options["input"] = self.rng.choice(children).packed()
                self.image.pieces["spawn"].remove((at, length))
                self.image.add("spawn", msgpack.packb(options, use_bin_type=True))


# -- Courses ---------------------------------------------------------------------------------------
def _tokens(writer: Writer, count: int) -> int:
    ids = (writer.rng.randrange(1, 258) for _ in range(count))
    return writer.piece("tokens", struct.pack(f"<{count}I", *ids))[0]


def _opts(writer: Writer, **given: object) -> tuple[int, int]:
    return writer.piece("pred", msgpack.packb(given, use_bin_type=True)) if given else (0, 0)


def decode(writer: Writer) -> None:
    """A prompt, then a pred of each token that came: what is guessed about."""
    rng = writer.rng
    kv = writer.call("kv_create")
    options = rng.choice(({}, {"get": {"sample": {"seed": 5}}}, {"bias": {0: -1e9}}))
    opts = _opts(writer, **options)
    count = rng.choice((1, 4, 15, 20))
    first = writer.call("pred", (kv, 0), _tokens(writer, count), count, 0, *opts)
    writer.claim(first)
    _go_on(writer, kv, opts)


def _go_on(writer: Writer, kv: int, opts: tuple[int, int]) -> None:
    rng = writer.rng
    before = len(writer.records)
    if rng.random() < 0.3:
        writer.pause()
    if rng.random() < 0.5:
        writer.call("pred_claim", (kv, 0), OUT, 1, 0, *opts, OUT, 8)
    else:
        writer.claim(writer.call("pred", (kv, 0), OUT, 1, 0, *opts))
    if rng.random() < 0.2:
        writer.call("kv_len", (kv, 0))
    writer.again(len(writer.records) - before, rng.choice((2, 5, 20)))


def sink(writer: Writer) -> None:
    """A file that forgets its middle: what is kept goes to a new file, the old one is closed."""
    rng = writer.rng
    decode(writer)
    old = writer.arguments.known["kv"][-1]
    kept = writer.call("kv_create")
    few, many = rng.choice((1, 4)), rng.choice((1, 64, 140))
    if rng.random() < 0.3:
        writer.pause()
    none = _opts(writer, get="none")
    positions = writer.piece("positions", struct.pack(f"<{few}I", *range(few)))[0]
    writer.claim(writer.call("pred", (kept, 0), _tokens(writer, few), few, positions, *none))
    writer.call("kv_append", (kept, 0), (old, 0), rng.choice((0, 2)), rng.choice((3, 5)))
    if rng.random() < 0.3:
        writer.pause()
    writer.call("kv_close", (old, 0))
    places = writer.piece("positions", struct.pack(f"<{many}I", *range(9, 9 + many)))[0]
    bias = _opts(writer, bias={0: -1e9})
    writer.claim(writer.call("pred", (kept, 0), _tokens(writer, many), many, places, *bias))
    _go_on(writer, kept, bias)


def generate(writer: Writer) -> None:
    """A generation, taken bit by bit, cancelled, or left."""
    rng = writer.rng
    kv = writer.call("kv_create")
    at, size = writer.image.pick("generate")
    count = rng.choice((1, 3, 17))
    ticket = writer.call("generate", (kv, 0), _tokens(writer, count), count, at, size)
    before = len(writer.records)
    writer.call("claim", (ticket, 0), OUT, rng.choice((8, 64, 4_096)), 200)
    writer.again(1, rng.choice((1, 3, 40)))
    assert len(writer.records) == before + 2
    if rng.random() < 0.5:
        writer.call("cancel", (ticket, 0))
        writer.claim(writer.call("pred", (kv, 0), _tokens(writer, 1), 1, 0, 0, 0))


def branches(writer: Writer) -> None:
    """Forks of one prompt that decode together."""
    rng = writer.rng
    kv = writer.call("kv_create")
    count = rng.choice((16, 17, 40))
    writer.claim(writer.call("pred", (kv, 0), _tokens(writer, count), count, 0, 0, 0))
    forks = [writer.call("kv_fork", (kv, 0)) for _ in range(rng.choice((2, 5)))]
    tickets = [
        writer.call("pred", (fork, 0), _tokens(writer, 1), 1, 0, *writer.image.pick("pred"))
        for fork in forks
    ]
    if rng.random() < 0.4:
        writer.call("cancel", (rng.choice(tickets), 0))
    for ticket in tickets:
        writer.claim(ticket)
    for fork in forks[1:]:
        writer.call("kv_close", (fork, 0))


def named(writer: Writer) -> None:
    """A file is saved, opened, offered, found, listed, removed."""
    rng = writer.rng
    path = writer.image.pick("path")
    kv = writer.call("kv_create")
    tokens = _tokens(writer, 33)
    writer.claim(writer.call("pred", (kv, 0), tokens, 33, 0, 0, 0))
    writer.call("kv_save", (kv, 0), *path, rng.choice((0, 1, 1, 5)))
    opened = writer.call("kv_open", *path, 31)
    writer.claim(writer.call("pred", (opened, 0), _tokens(writer, 1), 1, 0, 0, 0))
    writer.call("kv_offer", (kv, 0))
    found = writer.call("kv_match", tokens, 33)
    writer.call("kv_advise", (found, 0), rng.randrange(5), rng.choice((0, 1)))
    writer.call("kv_list", 0, 0, OUT, 4_096)
    if rng.random() < 0.5:
        writer.call("kv_remove", *path)


def family(writer: Writer) -> None:
    """A child with a grant, and its end."""
    spawned = writer.call("spawn", *writer.image.pick("spawn"))
    at = OUT + 32
    writer.call("claim", (spawned, 0), at, 4, 200)
    writer.arguments.known["pid"].append(writer.call("set", 1 + writer.rng.randrange(3)))
    if writer.rng.random() < 0.6:
        grant = writer.image.pick("grant")
        known = writer.arguments.known
        kv = known["kv"][-1] if known["kv"] else NONE
        writer.call("kv_grant", (kv, 0), (known["pid"][-1], 0), 3, *grant)
    joined = writer.call("join", (writer.arguments.known["pid"][-1], 0))
    writer.call("claim", (joined, 0), OUT, 4_096, writer.rng.choice((0, 5, 200)))


def several(writer: Writer) -> None:
    """A wait for the first of several tickets."""
    tickets = writer.arguments.known["ticket"][-3:]
    for index, ticket in enumerate(tickets):
        writer.call("store", SCRATCH[0] + 4 * index, (ticket, 0))
    writer.call("wait", SCRATCH[0], len(tickets), writer.rng.choice((0, 1, 20, 200)))


def rest(writer: Writer) -> None:
    """A long prompt that is left alone for a while, again and again: its pages go away."""
    rng = writer.rng
    kv = writer.call("kv_create")
    count = rng.choice((33, 64, 140))
    writer.claim(writer.call("pred", (kv, 0), _tokens(writer, count), count, 0, 0, 0))
    if rng.random() < 0.3:
        kv = writer.call("kv_fork", (kv, 0))
    before = len(writer.records)
    writer.claim(writer.call("sleep", rng.choice((20, 100, 300))))
    writer.claim(writer.call("pred", (kv, 0), OUT, 1, 0, 0, 0))
    writer.again(len(writer.records) - before, rng.choice((1, 3, 6)))


Courses = tuple[Callable[[Writer], None], ...]
_COURSES: Courses = (
    decode, decode, sink, sink, generate, generate, branches, named, family, several, Writer.pause,
)  # fmt: skip
RESTING: Courses = (*_COURSES, *[rest] * 10)
