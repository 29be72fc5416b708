"""A noisy neighbour: what plain completions lose to another tenant's worst programs.

    python -m benchmarks.neighbour [--rounds 3] [--seconds 3] [--kinds loops,files+talk] [--json]
    python -m benchmarks.neighbour --virtual

One tenant, the victim, streams completions. Beside it comes, in turn: nobody; an equal, which
streams as many; and one that runs each kind of hostile programs, some of them together (`+`: the
worst that are known), and all of them. Half the service
is the victim's fair share: half the throughput that it has alone, and twice the 99th percentile of
the time between two chunks. The ratios say how much worse than that it is; 1 is fair, less is
better, and 1.25 is the bound.

Each round measures all of them, one after the other, `--seconds` each; figures are medians of the
rounds' own ratios, so that a machine that gets slower from round to round shows in none of them.
The hostile clients are on this machine, too, which they would not be: they yield to everybody.

With --virtual: the kernel's part alone, on the simulated executor in virtual time, exact and the
same everywhere; there the fair share is what the victim has alone on a device of half the speed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import aiohttp
import msgpack
from symphony_runtime.client import Client, ClientError

from benchmarks.serving.sse import read_completion
from tests.e2e.programs import SPIN_WASM, wasm
from tests.support.floods import FLOODS, WANTED, Device, fair
from tests.support.floods import measure as simulate
from tests.support.guests import data, main
from tests.support.server import RunningServer, running_server

BOUND = 1.25
STREAMS = 2  # of the victim, and of its equal
TOKENS = 96  # of one completion
PROMPT = "Once upon a time there was a little girl who liked to read. " * 2
SETTLE_SECONDS = 0.7  # after somebody has come or gone
_NICENESS, _GROUP_ATTEMPTS = 10, 5  # of hostile clients, which are not to disturb by themselves
_RETRY_SECONDS = 0.05  # of a hostile client that was refused
_LOCALS = "(local $kv i32) (local $other i32) (local $n i32)"

# Prompts of 1,500 tokens without end.
_PROMPT = """(drop (call $claim (call $pred (local.get $kv) (i32.const 4096) (i32.const {n})
  (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 64) (i32.const 8)))"""
PROMPTS = wasm(
    main(
        f"""(loop $next
          (local.set $kv (call $kv_create)) {_PROMPT.format(n=1500)}
          (drop (call $kv_close (local.get $kv))) (br $next)) (i32.const 0)""",
        locals_=_LOCALS,
    )
)
# Files without end: prompts, forks, appends, names; nothing is closed before the table is full.
FILES = wasm(
    main(
        f"""(loop $next
          (local.set $kv (call $kv_create)) {_PROMPT.format(n=64)}
          (local.set $n (i32.const 32))
          (loop $more
            (local.set $other (call $kv_fork (local.get $kv)))
            (drop (call $kv_append (local.get $other) (local.get $kv) (i32.const 0) (i32.const 63)))
            (i32.store (i32.const 512) (local.get $other))
            (drop (call $kv_save (local.get $other) (i32.const 512) (i32.const 1) (i32.const 1)))
            (local.set $n (i32.sub (local.get $n) (i32.const 1)))
            (br_if $more (local.get $n)))
          (br $next)) (i32.const 0)""",
        data(512, "a"),
        locals_=_LOCALS,
    )
)
_CHILD = msgpack.packb({"entry": "child", "input": b"", "grants": []})
# Children that compute, as many as there may be, and their own likewise.
_FORKS = f"""(loop $next
  (drop (call $claim (call $spawn (i32.const 512) (i32.const {len(_CHILD)}))
                     (i32.const 64) (i32.const 4)))
  (local.set $n (i32.add (local.get $n) (i32.const 1)))
  (br_if $next (i32.lt_u (local.get $n) (i32.const 16)))) (loop $l (br $l)) (i32.const 0)"""
FORKS = wasm(
    main(
        _FORKS,
        data(512, _CHILD),
        f'(func (export "child") (result i32) {_LOCALS} {_FORKS})',
        locals_=_LOCALS,
    )
)
# Messages, lines and channel items without end.
TALK = wasm(
    main(
        """(loop $next
          (drop (call $send (i32.const 1024) (i32.const 32768)))
          (drop (call $log (i32.const 1) (i32.const 1024) (i32.const 4096)))
          (drop (call $channel_send (i32.const 512) (i32.const 1) (i32.const 0) (i32.const 32768)))
          (drop (call $claim (call $channel_recv (i32.const 512) (i32.const 1))
                             (i32.const 65600) (i32.const 60000)))
          (br $next)) (i32.const 0)""",
        data(512, "c"),
        locals_=_LOCALS,
    )
)
# Slow to compile: large functions of deep expressions.
_SUM = "(local.set 0 (i32.add (local.get 0) (i32.mul (local.get 0) (i32.const 7))))"
_LARGE = " ".join(f'(func (export "f{i}") (param i32) {_SUM * 2_000})' for i in range(40))
_START = '(module (memory (export "memory") 1) (func (export "_start"))'


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of hostile programs: so many clients run one, again and again."""

    program: bytes
    clients: int


KINDS = {
    "loops": Kind(SPIN_WASM, 12),
    "forks": Kind(FORKS, 4),
    "files": Kind(FILES, 6),
    "talk": Kind(TALK, 6),
    "prompts": Kind(PROMPTS, 8),
}
UPLOADS, ALL = "uploads", "all"
# Each kind by itself leaves less of what the others of it take than the worst together do.
WORST = ("files+talk", "files+talk+prompts+uploads")
CALL_US = 100.0  # of the kernel's thread, for a call on a KV file
CALLS = f"files, {CALL_US:.0f} us a call"


# -- The victim ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Figures:
    """What somebody's streams got: tokens a second, and seconds between chunks and to the first."""

    rate: float
    gaps: list[float]
    firsts: list[float]

    @property
    def p99(self) -> float:
        """The 99th percentile of the gaps."""
        return statistics.quantiles(self.gaps, n=100)[98]


async def _complete(session: aiohttp.ClientSession) -> tuple[float, list[float], int]:
    """Return when a completion was asked for, when its chunks came, and how many tokens it had."""
    body = {
        "model": "tiny", "prompt": PROMPT, "max_tokens": TOKENS, "stream": True, "temperature": 0,
        "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    began = time.perf_counter()
    async with session.post("/v1/completions", json=body) as response:
        if response.status != 200:
            raise SystemExit(f"the victim was answered {response.status}: {await response.text()}")
        pieces = [(time.perf_counter(), piece) async for piece in response.content.iter_any()]
    found = read_completion(pieces)
    return began, found.texts, found.completion_tokens or 0


async def streams(url: str, key: str, seconds: float) -> Figures:
    """Stream completions for a while, `STREAMS` at a time."""
    until, tokens = time.perf_counter() + seconds, 0
    gaps: list[float] = []
    firsts: list[float] = []
    began = time.perf_counter()

    async def one(session: aiohttp.ClientSession) -> None:
        nonlocal tokens
        while time.perf_counter() < until:
            asked, texts, given = await _complete(session)
            tokens += given
            firsts.append(texts[0] - asked)
            gaps.extend(b - a for a, b in pairwise(texts))

    async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {key}"}) as session:
        await asyncio.gather(*(one(session) for _ in range(STREAMS)))
    return Figures(tokens / (time.perf_counter() - began), gaps, firsts)


# -- The others ------------------------------------------------------------------------------------
@contextlib.asynccontextmanager
async def _beside(server: RunningServer, key: str, kind: str) -> AsyncIterator[None]:
    """Have hostile clients at work for the length of a block, in a process of their own: what they
    read must not disturb whoever takes the victim's times."""
    given = ["--be", kind, "--url", server.url, "--key", key]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.neighbour", *given,
        stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert await child.stdout.readline(), "the hostile clients have not come"
        await asyncio.sleep(SETTLE_SECONDS)
        yield
        assert child.returncode is None, "the hostile clients have gone"
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def be(kind: str, url: str, key: str) -> None:
    """Be the hostile clients, until the process is killed."""

    async def again(work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except ClientError:  # refused, or killed: hostile clients come again
                await asyncio.sleep(_RETRY_SECONDS)

    async with Client(url, key) as client:
        works = _works(client, kind)
        print("here", flush=True)
        await asyncio.gather(*(again(work) for work in works))


def _check_kinds(kinds: list[str]) -> None:
    known = {*KINDS, UPLOADS, ALL}
    for kind in kinds:
        if not known.issuperset(kind.split("+")):
            raise SystemExit(f"no kind is {kind!r}: there are {', '.join(sorted(known))}")


def _yield_processors() -> None:
    """Let everybody else have the processors first: elsewhere one would not be on this machine.

    Where sessions share them before processes do, niceness says nothing beyond one's own session;
    this process has one to itself (`_beside`), which is made nice as a whole.
    """
    os.nice(_NICENESS)
    group = Path("/proc/self/autogroup")
    for attempt in range(_GROUP_ATTEMPTS):
        try:
            if group.exists() and group.read_text():
                group.write_text(str(_NICENESS))
        except BlockingIOError:  # the system lets one be set in a tenth of a second
            if attempt == _GROUP_ATTEMPTS - 1:
                raise
            time.sleep(0.1)
        else:
            return


def _works(client: Client, kind: str) -> list[Callable[[], Awaitable[None]]]:
    if kind == ALL:
        kind = "+".join((*KINDS, UPLOADS))
    if "+" in kind:
        return [work for each in kind.split("+") for work in _works(client, each)]
    if kind == UPLOADS:
        large = wasm(f"{_START} {_LARGE})")

        async def upload() -> None:
            mark = secrets.token_bytes(8)  # a custom section: another program each time
            await client.upload(large + bytes([0, 1 + len(mark), 0]) + mark)

        return [upload] * 2

    async def run() -> None:
        await client.run(kind)

    return [run] * KINDS[kind].clients


async def _calm(client: Client) -> None:
    """End all that a client still runs."""
    for run in await client.live_runs():
        with contextlib.suppress(ClientError):
            await client.cancel(run["id"])
    while await client.live_runs():
        await asyncio.sleep(_RETRY_SECONDS)


async def _tenant(server: RunningServer, name: str) -> str:
    async with server.admin() as admin:
        await admin.create_tenant(name)
        return str((await admin.create_key(name))["key"])


async def measure(
    server: RunningServer, kinds: list[str], rounds: int, seconds: float
) -> list[dict[str, Figures]]:
    """Return of each round what the victim got, by who was beside it."""
    victim, equal, hostile = [await _tenant(server, n) for n in ("victim", "equal", "hostile")]
    found: list[dict[str, Figures]] = []
    async with Client(server.url, hostile) as client:
        for name, kind in KINDS.items():
            await client.upload(kind.program, name)
        await streams(server.url, victim, seconds / 2)  # the first ones are slower
        for _ in range(rounds):
            got = {"nobody": await streams(server.url, victim, seconds)}
            both = (streams(server.url, key, seconds) for key in (victim, equal))
            got["an equal"] = (await asyncio.gather(*both))[0]
            for kind_name in kinds:
                async with _beside(server, hostile, kind_name):
                    got[kind_name] = await streams(server.url, victim, seconds)
                await _calm(client)
                await asyncio.sleep(SETTLE_SECONDS)
            found.append(got)
    return found


def report(rounds: list[dict[str, Figures]]) -> dict[str, dict[str, float]]:
    """Return by neighbour the medians of rates and gaps (ms), and their ratios to what is fair."""
    rows: dict[str, dict[str, float]] = {}
    for name in rounds[0]:
        mine, alone = [each[name] for each in rounds], [each["nobody"] for each in rounds]
        pairs = list(zip(mine, alone, strict=True))
        rows[name] = {
            "tokens_s": statistics.median(each.rate for each in mine),
            "p99_ms": 1000 * statistics.median(each.p99 for each in mine),
            "first_ms": 1000 * statistics.median(statistics.mean(each.firsts) for each in mine),
            "rate_ratio": statistics.median(b.rate / 2 / a.rate for a, b in pairs),
            "p99_ratio": statistics.median(a.p99 / (2 * b.p99) for a, b in pairs),
        }
    return rows


def benchmark(kinds: list[str], rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Start a server with the tiny model, measure, and return the report."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), "--threads", "2", executor="torch") as server,
    ):
        return report(asyncio.run(measure(server, kinds, rounds, seconds)))


def show(rows: dict[str, dict[str, float]]) -> None:
    """Print the report as a table."""
    bound = f"(<= {BOUND})"
    print("fair / had: 1 is the fair share, less is better")
    print(f"{'':28}{'':30}{'throughput':>14}{'p99':>14}")
    print(f"{'beside':28}{'tokens/s':>10}{'p99 ms':>10}{'first ms':>10}{bound:>14}{bound:>14}")
    for name, row in rows.items():
        bad = max(row["rate_ratio"], row["p99_ratio"]) > BOUND
        figures = f"{row['tokens_s']:10.0f}{row['p99_ms']:10.1f}{row['first_ms']:10.1f}"
        ratios = f"{row['rate_ratio']:14.2f}{row['p99_ratio']:14.2f}"
        print(f"{name:28}{figures}{ratios}{f'   past {BOUND}' if bad else ''}")


# -- The kernel's part, in virtual time ------------------------------------------------------------
DEVICES = {  # as in benchmarks.pressure, and one with steps shorter than the host's part
    "a small model on two cores": Device(15_000, 600, 700, 0.1, host_us=300),
    "a tiny model on two cores": Device(400, 20, 60, 0.01, host_us=500),
    "an accelerator": Device(6_000, 15, 20, 0.002, host_us=300),
}


def benchmark_virtual() -> dict[str, dict[str, dict[str, float]]]:
    """Return by device and wish the rows of a report."""
    found = {}
    for device_name, device in DEVICES.items():
        for wish, wanted in WANTED.items():
            share = fair(device, wanted)
            rows = {}
            for flood, programs in {"nobody": [], **FLOODS, CALLS: FLOODS["files"]}.items():
                got = simulate(device, wanted, programs, call_us=CALL_US * (flood == CALLS))
                rate, _, p99 = got.worse(share)
                rows[flood] = {
                    "tokens_s": got.rate, "p99_ms": got.p99_ms, "first_ms": got.first_ms,
                    "rate_ratio": rate, "p99_ratio": p99,
                }  # fmt: skip
            found[f"{device_name}, {wish}"] = rows
    return found


def main_() -> int:
    """Measure and print; return the exit code: 1 past the bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--kinds", default=",".join((*KINDS, UPLOADS, *WORST, ALL)))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--virtual", action="store_true", help="the kernel's part alone")
    parser.add_argument("--be", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.be:
        _yield_processors()
        asyncio.run(be(given.be, given.url, given.key))
    if given.virtual:
        tables = benchmark_virtual()
    else:
        kinds = given.kinds.split(",")
        _check_kinds(kinds)
        tables = {"": benchmark(kinds, given.rounds, given.seconds)}
    if given.json:
        print(json.dumps(tables if given.virtual else tables[""], indent=2))
    else:
        for title, rows in tables.items():
            print(f"\n{title}" if title else "", end="\n" if title else "")
            show(rows)
    worst = (max(r["rate_ratio"], r["p99_ratio"]) for t in tables.values() for r in t.values())
    return int(max(worst) > BOUND)


if __name__ == "__main__":
    sys.exit(main_())
