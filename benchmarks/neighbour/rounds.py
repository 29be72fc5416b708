"""Runs the measurements: one server, and each attack between two windows of the victim alone."""

import asyncio
import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from symphony import AsyncClient, ClientError

from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.neighbour.attacks import Requests, Runs, Target, crowds
from benchmarks.neighbour.clients import AttackError, attacking
from benchmarks.neighbour.victim import Figures, Victim, VictimError
from benchmarks.serving.servers import REPOSITORY
from tests.support.gateway.metrics import scrape
from tests.support.server.server import RunningServer, running_server

SETTLE_SECONDS = 0.7  # after attackers have come or gone
CALM_SECONDS_MAX = 120.0  # until what attackers began has ended
_CALM_TIMES, _CALM_SLACK_SECONDS = 2.0, 0.05  # a long prompt against one before any attack
_POLL_SECONDS = 0.05
SCRAPE_SECONDS_MIN = 1.1  # between two scrapes: the server's counters may be a second old
_VICTIM = "victim"
_TOKENS = ("prompt_tokens_total", "generation_tokens_total")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: all kinds at all weights and numbers of attackers, in each round.

    Attributes:
        weights: Pairs of the victim's weight and each attacker's.
        attackers: Numbers of attacking tenants, each of which carries out the whole attack.
    """

    kinds: list[str]
    weights: list[tuple[float, float]]
    attackers: list[int]
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One attack at one setting."""

    kind: str
    weights: tuple[float, float]
    attackers: int

    @property
    def share(self) -> float:
        """The victim's share of the device: its weight over all weights."""
        victim, attacker = self.weights
        return victim / (victim + self.attackers * attacker)


@dataclass(frozen=True, slots=True)
class Measure:
    """One measurement of a cell. `alone` holds the windows before and after it.

    Attributes:
        took: Tokens a second that the attackers had computed, all together.
        counts: How the attackers' requests, runs and uploads ended in the window, and the megabytes
            of their answers.
        error: Why there is no measurement, or why it does not count.
    """

    cell: Cell
    alone: tuple[Figures, Figures]
    attacked: Figures | None
    took: float
    counts: Counter[str]
    error: str = ""


def checkpoint(model: str) -> str:
    """Return what `symphony serve --model` takes: a random checkpoint is made if it is not there.

    `model` is tiny, one of `SHAPES`, or a checkpoint's folder.
    """
    if model == "tiny":
        return model
    if model not in SHAPES:
        return str(Path(model).resolve())
    made = REPOSITORY / "build" / "peers" / "models" / model  # as benchmarks.serving keeps them
    if not (made / "model.safetensors").exists():
        make_checkpoint(made, SHAPES[model])
    return str(made)


def measure(model: str, plan: Plan, options: list[str], told: Callable[[Measure], None]) -> None:
    """Start a server, measure the plan, and tell of each measurement as it is made."""
    given = ["--model", checkpoint(model), "--threads", "2", *options]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), *given, executor="torch") as server,
    ):
        asyncio.run(_measure(server, plan, told))


async def _measure(server: RunningServer, plan: Plan, told: Callable[[Measure], None]) -> None:
    await server.wait_until_ready()
    attackers = [f"attacker-{index}" for index in range(max(plan.attackers))]
    keys = {name: await _tenant(server, name) for name in (_VICTIM, *attackers)}
    async with _session(server.url, keys[_VICTIM]) as session:
        target = await _target(session)
        victim = Victim(session, target)
        await victim.prepare()
        await victim.measure(plan.seconds / 2)  # the first steps are slower
        calm = min([await victim.long_first() for _ in range(3)])
        bench = _Bench(server, victim, target, keys, calm)
        for _ in range(plan.rounds):
            before = await victim.measure(plan.seconds)
            for kind in plan.kinds:
                for weights in plan.weights:
                    for number in plan.attackers:
                        cell = Cell(kind, weights, number)
                        made = await bench.cell(cell, plan.seconds, before)
                        told(made)
                        before = made.alone[1]


class _Bench:
    """A server with its tenants, beside which cells are measured one after the other."""

    def __init__(
        self,
        server: RunningServer,
        victim: Victim,
        target: Target,
        keys: dict[str, str],
        calm_seconds: float,
    ) -> None:
        self._server, self._victim, self._target = server, victim, target
        self._keys, self._calm_seconds = keys, calm_seconds

    async def cell(self, cell: Cell, seconds: float, before: Figures) -> Measure:
        """Measure one cell, and the victim alone after it."""
        attackers = [name for name in self._keys if name != _VICTIM][: cell.attackers]
        await self._weigh(cell, attackers)
        attacked: Figures | None = None
        took, error = 0.0, ""
        counts: Counter[str] = Counter()
        keys = [self._keys[name] for name in attackers]
        try:
            async with attacking(cell.kind, self._server.url, keys, self._target) as clients:
                await clients.ready()
                await asyncio.sleep(SETTLE_SECONDS)
                counts = await clients.counts()
                tokens, at = await self._tokens(attackers), time.perf_counter()
                attacked = await self._victim.measure(seconds)
                await asyncio.sleep(at + SCRAPE_SECONDS_MIN - time.perf_counter())
                took = (await self._tokens(attackers) - tokens) / (time.perf_counter() - at)
                counts = await clients.counts() - counts
                counts["live"] = await self._live(attackers)
            error = _in_vain(cell.kind, counts, took)
        except (AttackError, VictimError, TimeoutError) as raised:
            error = str(raised) or type(raised).__name__
        held_up = await self._calm(attackers)
        error = error or held_up
        after = await self._victim.measure(seconds)
        return Measure(cell, (before, after), attacked, took, counts, error)

    async def _weigh(self, cell: Cell, attackers: list[str]) -> None:
        victim, attacker = cell.weights
        async with self._server.admin() as admin:
            await admin.admin.change_tenant(_VICTIM, weight=victim)
            for name in attackers:
                await admin.admin.change_tenant(name, weight=attacker)

    async def _tokens(self, tenants: list[str]) -> float:
        """Return how many tokens the model has computed for these tenants."""
        key = (self._server.data_dir / "admin.key").read_text().strip()
        series = await scrape(self._server.url, key)
        return sum(
            value
            for (name, labels), value in series.items()
            if name in _TOKENS and dict(labels).get("tenant") in tenants
        )

    async def _live(self, tenants: list[str]) -> int:
        """Return how many live runs these tenants have, at most 200 of each."""
        live = 0
        for name in tenants:
            async with AsyncClient(self._server.url, self._keys[name], retries=0) as client:
                live += len(await client.runs.live())
        return live

    async def _calm(self, attackers: list[str]) -> str:
        """End what attackers still run, and wait until nothing of it holds up the victim."""
        until = time.perf_counter() + CALM_SECONDS_MAX
        for name in attackers:
            async with AsyncClient(self._server.url, self._keys[name], retries=0) as client:
                while runs := await client.runs.live():
                    for run in runs:
                        with contextlib.suppress(ClientError):
                            await client.runs.cancel(run["id"])
                    await asyncio.sleep(_POLL_SECONDS)
        most = _CALM_TIMES * self._calm_seconds + _CALM_SLACK_SECONDS
        while await self._victim.long_first() > most:
            if time.perf_counter() > until:
                return f"the victim is held up {CALM_SECONDS_MAX:.0f} s after the attack's end"
        await asyncio.sleep(SETTLE_SECONDS)
        return ""


def _in_vain(kind: str, counts: Counter[str], took: float) -> str:
    """Return why an attack was none: it did nothing, or all that it did was refused."""
    found = crowds(kind)
    if any(isinstance(crowd, Requests) and crowd.refused for crowd in found):
        answered = counts["400"] + counts["413"]
        return "" if answered else f"no request was answered: {dict(counts)}"
    if all(isinstance(crowd, Requests) for crowd in found) and not took:
        return f"no token was computed for the attackers: {dict(counts)}"
    if all(isinstance(crowd, Runs) for crowd in found) and not sum(counts.values()):
        return f"no program runs: {dict(counts)}"
    failed = {name: number for name, number in counts.items() if name.startswith(("exited ", "tr"))}
    return f"the attack's programs fail: {failed}" if failed else ""


@contextlib.asynccontextmanager
async def _session(url: str, key: str) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=None)
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(url, headers=headers, timeout=timeout) as session:
        yield session


async def _tenant(server: RunningServer, name: str) -> str:
    async with server.admin() as admin:
        await admin.admin.create_tenant(name)
        return str((await admin.admin.create_key(name))["key"])


async def _target(session: aiohttp.ClientSession) -> Target:
    async with session.get("/v1/models") as response:
        first = json.loads(await response.read())["data"][0]
    return Target(first["id"], first["max_model_len"])
