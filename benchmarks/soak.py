"""Tens of thousands of short runs of several kinds: does anything grow?

    python -m benchmarks.soak [--runs 50000] [--seconds 600] [--executor torch|simulated] [--json]

Clients drive a real server over HTTP (the tiny model; or a simulated device) with runs that decode,
fork, spawn a child, wait for messages, trap, break a limit, are cancelled, or are left by their
reader; with the tiny model OpenAI's clients come, too. Meanwhile each role's memory (heaps and
stacks), descriptors, the kernel's counters and the database are
sampled. After a warm-up of a third of the runs, a line through each tells the growth per 1,000
runs, with its standard error; what is beyond doubt above the bound fails the soak (exit code 1). So
does anything that is not given back when the last run has ended.

The server keeps few ended runs, so that it comes to deleting them soon.
"""

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
from symphony import AsyncClient

from benchmarks.memory import Line, fit, held_bytes, largest_mapping, open_descriptors
from tests.e2e.programs import HELLO_WASM, PARROT_WASM, SPIN_WASM, TRAP_WASM, wasm
from tests.support.server.server import RunningServer, running_server
from tests.support.worker.guests import data, main

CLIENTS = 16
SAMPLE_SECONDS = 1.0
WARM_UP_SHARE = 1 / 3  # of the runs
KEPT_RUNS = 500  # by the server
IDLE_SECONDS_MAX = 30.0
# Growth per 1,000 runs that fails: a run may not leave 64 bytes in any role.
ROLE_BYTES_MAX = 64 << 10
DATABASE_BYTES_MAX = 64 << 10
POOL_BYTES_MIN = 64 << 20  # a smaller mapping is no pool
COUNT_MAX = 1.0  # of descriptors, instances, handles, files, pages

_PRED = """(drop (call $claim (call $pred {kv} (i32.const 0) (i32.const {tokens})
  (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 256) (i32.const 8)))"""
_DECODE = f"""
  (local.set $kv (call $kv_create))
  {_PRED.format(kv="(local.get $kv)", tokens=8)}
  (loop $next
    {_PRED.format(kv="(local.get $kv)", tokens=1)}
    (drop (call $send (i32.const 256) (i32.const 4)))
    (local.set $n (i32.add (local.get $n) (i32.const 1)))
    (br_if $next (i32.lt_u (local.get $n) (i32.const 4))))"""
_LOCALS = "(local $kv i32) (local $fork i32) (local $n i32)"
DECODE = wasm(main(f"{_DECODE} (i32.const 0)", locals_=_LOCALS))
FORK = wasm(
    main(
        f"""
        (local.set $kv (call $kv_create))
        {_PRED.format(kv="(local.get $kv)", tokens=20)}
        (loop $next
          (local.set $fork (call $kv_fork (local.get $kv)))
          {_PRED.format(kv="(local.get $fork)", tokens=1)}
          (if (i32.and (local.get $n) (i32.const 1))
            (then (drop (call $kv_close (local.get $fork)))))
          (local.set $n (i32.add (local.get $n) (i32.const 1)))
          (br_if $next (i32.lt_u (local.get $n) (i32.const 4))))
        (call $await (call $kv_save (local.get $kv) (i32.const 512) (i32.const 6) (i32.const 1)))
        (drop (call $send (i32.const 256) (i32.const 4)))
        (i32.const 0)""",
        data(512, "a/file"),
        locals_=_LOCALS,
    )
)
_CHILD = msgpack.packb({"entry": "child", "input": b"", "grants": []})
SPAWN = wasm(
    main(
        f"""(drop (call $claim (call $spawn (i32.const 512) (i32.const {len(_CHILD)}))
                               (i32.const 256) (i32.const 4)))
            (drop (call $send (i32.const 1024) (call $claim
                (call $join (i32.load (i32.const 256))) (i32.const 1024) (i32.const 100))))
            (i32.const 0)""",
        data(512, _CHILD),
        f'(func (export "child") (result i32) {_LOCALS} {_DECODE} (i32.const 3))',
    )
)
HANG = wasm(main("(call $await (call $sleep (i64.const 86400000))) (i32.const 0)"))
CHATTER = wasm(
    main(
        """(loop $next
             (drop (call $send (i32.const 1024) (i32.const 2048)))
             (call $await (call $sleep (i64.const 1)))
             (local.set $n (i32.add (local.get $n) (i32.const 1)))
             (br_if $next (i32.lt_u (local.get $n) (i32.const 20))))
           (i32.const 0)""",
        locals_=_LOCALS,
    )
)
PROGRAMS = {
    "decode": DECODE, "fork": FORK, "spawn": SPAWN, "hang": HANG, "chatter": CHATTER,
    "hello": HELLO_WASM, "parrot": PARROT_WASM, "trap": TRAP_WASM, "spin": SPIN_WASM,
}  # fmt: skip


# --- Runs ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Visitor:
    """Who makes runs: through our client, or as a client of OpenAI's (model "": the server has no
    tokenizer, so no client comes so)."""

    client: AsyncClient
    session: aiohttp.ClientSession
    model: str

    async def ends(self, name: str, status: str, **options: Any) -> None:
        """Run a program to its end."""
        result = await self.client.run(name, **options)
        assert result["status"] == status, result

    async def streams(self) -> None:
        """Read all events of a run."""
        last = [event async for event in self.client.stream("decode")][-1]
        assert last.data["status"] == "exited", last

    async def talks(self) -> None:
        """Exchange two messages with a program."""
        run = await self.client.start("parrot")
        await self.client.runs.send(run, b"one")
        await self.client.runs.send(run, b"two", close=True)
        events = [event async for event in self.client.runs.events(run)]
        said = [event.message() for event in events if event.kind == "message"]
        assert said == [b"one", b"two"]

    async def cancels(self) -> None:
        """Cancel a run that would last."""
        ended = await self.client.runs.cancel(await self.client.start("hang"))
        assert ended["status"] == "killed", ended

    async def leaves(self) -> None:
        """Read one message of a run and go; it goes on to its end."""
        async with aclosing(self.client.stream("chatter")) as events:  # type: ignore[type-var]
            async for event in events:
                if event.kind == "message":
                    break

    async def completes(self, *, stream: bool = False, leave: bool = False) -> None:
        """Ask for a completion as OpenAI's clients do; perhaps go after the first chunk."""
        body = {"model": self.model, "prompt": "Once upon a time", "max_tokens": 8,
                "stream": stream}  # fmt: skip
        url = f"{self.client.url}/v1/completions"
        async with self.session.post(url, json=body) as response:
            assert response.status == 200, await response.text()
            if leave:
                await response.content.readany()
                response.close()
            else:
                assert await response.read()


Kind = Callable[[Visitor], Awaitable[None]]
KINDS: dict[str, tuple[int, Kind]] = {  # how often, and what is done
    "decode": (30, lambda by: by.ends("decode", "exited")),
    "stream": (15, Visitor.streams),
    "fork": (15, lambda by: by.ends("fork", "exited")),
    "spawn": (5, lambda by: by.ends("spawn", "exited", entry="lip_main")),
    "hello": (10, lambda by: by.ends("hello", "exited")),
    "talk": (5, Visitor.talks),
    "cancel": (7, Visitor.cancels),
    "leave": (5, Visitor.leaves),
    "trap": (5, lambda by: by.ends("trap", "trapped")),
    "limit": (3, lambda by: by.ends("spin", "killed", limits={"cpu_ms": 2})),
}
OPENAI_KINDS: dict[str, tuple[int, Kind]] = {
    "completion": (15, Visitor.completes),
    "chunks": (10, lambda by: by.completes(stream=True)),
    "chunks left": (5, lambda by: by.completes(stream=True, leave=True)),
}


# --- Samples -------------------------------------------------------------------------------------
@dataclass
class Soak:
    """What has been seen so far. `samples` are rows of figures by name; `runs` is one of them."""

    server: RunningServer
    runs_max: int
    until: float
    model: str  # for OpenAI's clients; "" for none
    done: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, float]] = field(default_factory=list)

    @property
    def runs(self) -> int:
        """Runs that have ended, or been left."""
        return self.done.total()

    def over(self) -> bool:
        """Whether no further run shall begin."""
        return self.runs >= self.runs_max or time.monotonic() >= self.until


async def take_sample(soak: Soak, admin: AsyncClient, pids: dict[str, int]) -> dict[str, float]:
    """Return the figures of this moment."""
    found: dict[str, float] = {"runs": soak.runs}
    for role, pid in pids.items():
        found[f"{role} bytes"] = held_bytes(pid)
        if role == "kernel":  # apart: pages are touched one by one, until the whole pool is
            size, touched = largest_mapping(pid)
            pool = touched if size >= POOL_BYTES_MIN else 0
            found["kernel bytes"] -= pool
            found["kernel pool"] = pool
        descriptors = open_descriptors(pid)
        if descriptors is not None:
            found[f"{role} descriptors"] = descriptors
    statistics = await admin.admin.statistics()
    kernel, gateway = statistics["kernel"], statistics["gateway"]
    for name in ("instances", "handles", "files", "names"):
        found[f"kernel {name}"] = kernel[name]
    idle = kernel.get("prefix_cache_idle_pages", 0)
    found["kernel pages held"] = kernel["pages"] - kernel["pages_free"] - idle
    found["gateway runs live"] = gateway["runs"]
    found["gateway runs kept"] = gateway["kept_runs"]
    folder = soak.server.data_dir
    found["database bytes"] = sum(p.stat().st_size for p in folder.glob("symphony.sqlite*"))
    return found


def bound_of(name: str) -> float:
    """Return the growth per 1,000 runs that fails."""
    if name == "kernel pool":
        return math.inf  # its size bounds it
    if name == "database bytes":
        return DATABASE_BYTES_MAX
    return ROLE_BYTES_MAX if name.endswith("bytes") else COUNT_MAX


def growth(samples: list[dict[str, float]]) -> dict[str, Line]:
    """Return the line of each figure over thousands of runs, after the warm-up."""
    warm = samples[-1]["runs"] * WARM_UP_SHARE
    rows = [sample for sample in samples if sample["runs"] >= warm]
    xs = [row["runs"] / 1000 for row in rows]
    names = [name for name in rows[-1] if name != "runs"]
    return {name: fit(xs, [row[name] for row in rows]) for name in names}


# --- The soak ------------------------------------------------------------------------------------
async def client_loop(soak: Soak, number: int) -> None:
    """Make runs of all kinds, in an order of its own, until the soak is over."""
    kinds = KINDS | OPENAI_KINDS if soak.model else KINDS
    order = [name for name, (share, _) in kinds.items() for _ in range(share)]
    shuffler = random.Random(number)
    headers = {"Authorization": f"Bearer {soak.server.key}"}
    async with (
        soak.server.client() as client,
        aiohttp.ClientSession(headers=headers) as session,
    ):
        visitor = Visitor(client, session, soak.model)
        while not soak.over():
            shuffler.shuffle(order)
            for name in order:
                await kinds[name][1](visitor)
                soak.done[name] += 1
                if soak.over():
                    break


async def sampling_loop(soak: Soak, pids: dict[str, int]) -> None:
    """Take samples until it is cancelled."""
    async with soak.server.admin() as admin:
        while True:
            soak.samples.append(await take_sample(soak, admin, pids))
            await asyncio.sleep(SAMPLE_SECONDS)


async def soak_server(soak: Soak) -> dict[str, float]:
    """Make all runs; return the figures when everything has ended."""
    async with soak.server.client() as client:
        for name, program in PROGRAMS.items():
            await client.programs.upload(program, name)
    pids = {"supervisor": soak.server.process.pid, **await soak.server.pids()}
    sampling = asyncio.create_task(sampling_loop(soak, pids))
    await asyncio.gather(*(client_loop(soak, number) for number in range(CLIENTS)))
    sampling.cancel()
    await soak.server.wait_until_idle(IDLE_SECONDS_MAX)
    async with soak.server.admin() as admin:
        return await take_sample(soak, admin, pids)


def left_over(end: dict[str, float]) -> list[str]:
    """Return what was not given back. The one file is the one that runs have named."""
    wanted = {"kernel instances": 0, "kernel handles": 0, "kernel files": 1, "kernel names": 1,
              "kernel pages held": 2, "gateway runs live": 0}  # fmt: skip
    return [f"{name} is {end[name]:g}, not {n}" for name, n in wanted.items() if end[name] != n]


def report(soak: Soak, seconds: float, end: dict[str, float]) -> dict[str, Any]:
    """Return everything that was found; `failed` says in words what should not be."""
    lines = growth(soak.samples)
    grows = [f"{name} grows by {line.slope:,.1f} ± {line.error:,.1f} per 1,000 runs"
             for name, line in lines.items() if line.least > bound_of(name)]  # fmt: skip
    return {
        "runs": soak.runs,
        "seconds": seconds,
        "kinds": dict(soak.done),
        "growth_per_1000_runs": {
            name: {"slope": line.slope, "error": line.error, "bound": bound_of(name)}
            for name, line in lines.items()
        },
        "end": end,
        "samples": soak.samples,
        "failed": [*left_over(end), *grows],
    }


def show(found: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print(f"{found['runs']:,} runs in {found['seconds']:.0f} s: {found['kinds']}")
    print(f"{'':24} {'growth per 1,000 runs':>26} {'bound':>10} {'at the end':>14}")
    for name, line in found["growth_per_1000_runs"].items():
        slope = f"{line['slope']:,.1f} ± {line['error']:,.1f}"
        print(f"{name:24} {slope:>26} {line['bound']:>10,.0f} {found['end'][name]:>14,.0f}")
    for words in found["failed"]:
        print(f"FAILED: {words}")


def benchmark(runs: int, seconds: float, executor: str) -> dict[str, Any]:
    """Start a server, soak it, and return what was found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        config = path / "symphony.toml"
        config.write_text(f"tenant_runs_kept_max = {KEPT_RUNS}\n")
        with running_server(path, "--config", str(config), executor=executor) as server:
            began = time.monotonic()
            soak = Soak(server, runs, began + seconds, model="tiny" if executor == "torch" else "")
            end = asyncio.run(soak_server(soak))
            return report(soak, time.monotonic() - began, end)


def main_() -> int:
    """Soak and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--executor", choices=("torch", "simulated"), default="torch")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = benchmark(given.runs, given.seconds, given.executor)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main_())
