"""A program that chooses which documents stay computed, beside an automatic LRU prefix cache.

    python -m benchmarks.retrieval [--simulated] [--indices 0.5 0.75 1 1.5 2 4] [--documents 1]
        [--json FILE] [--plot FOLDER]

One server, and two runs of `examples/rag` on it that take turns within seconds: one keeps
documents by its own statistics, the other leaves it to the server's prefix cache. Both may keep the
same number of pages, and get the same questions about 100 documents, whose popularity is Pareto's
with the given index: the smaller, the more questions are about few of them. `--documents` is how
many each question is about, in varying order. What counts begins when both know what is popular.

`--simulated` has the same kernel, worker and program on a device that is only a cost model, in
virtual time: no noise, no cost of the host, and the two take turns of any length.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from symphony import AsyncClient
from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_runtime.cli.projects import build
from tokenizers import Tokenizer

from benchmarks.checkpoints import Shape, make_checkpoint
from benchmarks.program_cost import on_cpu_seconds
from tests.support.executor.byte_model import byte_assets
from tests.support.server.server import REPOSITORY, RunningServer, running_server
from tests.support.worker.rig import WorkerRig

DOCUMENTS = 100
DOCUMENT_TOKENS = 768
QUESTION = "{:04} what does it say of this?"  # each is another one
ANSWER_TOKENS = 16
PARALLEL = 8
SHAPE = Shape(384, 12, 6, 2, 1024, 8192)
INDICES = (0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
POLICIES = ("own", "automatic")
# A step of SmolLM2-135M's shape on two cores, as docs/evaluation/performance.md has it.
COSTS = CostModel(fixed_us=7_000, prefill_token_us=340, decode_row_us=300)
SIMULATED_LIMITS = {"wall_ms": 10**9, "tokens": 10**9}


@dataclass
class Burst:
    """What one policy did within one turn."""

    questions: int
    seconds: float
    computed: int  # tokens of prompts
    cpu: float  # processor seconds of all of the server's processes


@dataclass
class Row:
    """One index: each policy's bursts, in the order in which they took turns."""

    index: float
    bursts: dict[str, list[Burst]] = field(default_factory=lambda: {p: [] for p in POLICIES})

    def rate(self, policy: str) -> float:
        """Questions a second."""
        bursts = self.bursts[policy]
        return sum(b.questions for b in bursts) / sum(b.seconds for b in bursts)

    def computed(self, policy: str) -> float:
        """Prompt tokens computed for each question."""
        bursts = self.bursts[policy]
        return sum(b.computed for b in bursts) / sum(b.questions for b in bursts)

    def cpu(self, policy: str) -> float:
        """Processor seconds a question."""
        bursts = self.bursts[policy]
        return sum(b.cpu for b in bursts) / sum(b.questions for b in bursts)

    def ratios(self) -> list[float]:
        """How many times as fast the program's own policy was, in each pair of turns."""
        pairs = zip(*(self.bursts[policy] for policy in POLICIES), strict=True)
        return sorted(
            other.seconds / other.questions * own.questions / own.seconds for own, other in pairs
        )

    @property
    def ratio(self) -> float:
        """The same over all turns."""
        return self.rate("own") / self.rate("automatic")


def popularity(index: float, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return the documents' shares of questions ([DOCUMENTS]), in random order.

    Each document weighs what one of 100 equal parts of Pareto's distribution weighs in its middle.
    """
    middles = (np.arange(DOCUMENTS) + 0.5) / DOCUMENTS
    weights = (1 - middles) ** (-1 / index)
    shares: npt.NDArray[np.float64] = random.permutation(weights / weights.sum())
    return shares


def make_texts(tokenizer: Tokenizer, random: np.random.Generator) -> list[str]:
    """Return texts of DOCUMENT_TOKENS tokens, less than a page."""
    texts = []
    for _ in range(DOCUMENTS):
        letters = random.choice(list("abcdefghijklmnopqrstuvwxyz      \n"), 6 * DOCUMENT_TOKENS)
        text = "".join(letters)
        ends = [end for _, end in tokenizer.encode(text).offsets]
        text = text[: ends[DOCUMENT_TOKENS - 3]]
        count = len(tokenizer.encode(text).ids)
        assert DOCUMENT_TOKENS - PAGE_TOKENS < count <= DOCUMENT_TOKENS, count
        texts.append(text)
    return texts


class Asked:
    """One run of the program: questions go in, answers come out."""

    def __init__(self, client: AsyncClient, run: str) -> None:
        self._client = client
        self._run = run
        self._answers = asyncio.Semaphore(0)
        self._ended: str | None = None
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, client: AsyncClient, program: str, given: dict[str, Any]) -> "Asked":
        """Start it."""
        return cls(client, await client.start(program, input=json.dumps(given)))

    async def _read(self) -> None:
        async for event in self._client.runs.events(self._run):
            if event.kind == "message":
                self._answers.release()
        self._ended = "ended"
        for _ in range(PARALLEL):
            self._answers.release()

    async def ask(self, questions: list[list[int]]) -> float:
        """Ask, with PARALLEL questions under way; return the seconds until the last answer."""
        began = time.perf_counter()
        for number, wanted in enumerate(questions):
            if number >= PARALLEL:
                await self._answer()
            message = {
                "id": number,
                "documents": wanted,
                "question": QUESTION.format(number % 10_000),
            }
            await self._client.runs.send(self._run, json.dumps(message).encode())
        for _ in range(min(PARALLEL, len(questions))):
            await self._answer()
        return time.perf_counter() - began

    async def _answer(self) -> None:
        await self._answers.acquire()
        if self._ended is not None:
            result = await self._client.runs.get(self._run)
            raise SystemExit(f"the program ended: {result}")

    async def close(self) -> None:
        """No more questions."""
        await self._client.runs.send(self._run, b"", close=True)
        await self._reading
        result = await self._client.runs.get(self._run)
        if (result["status"], result["exit_code"]) != ("exited", 0):
            raise SystemExit(f"the program failed: {result}")


@asynccontextmanager
async def asked(
    client: AsyncClient, program: str, texts: list[str], kept: int
) -> AsyncIterator[dict[str, Asked]]:
    """A run of each policy on the same documents."""
    given = run_input(texts, kept)
    runs = {
        each: await Asked.start(client, program, {**given, "policy": each}) for each in POLICIES
    }
    yield runs
    for run in runs.values():
        await run.close()


async def measure(
    server: RunningServer,
    program: str,
    tokenizer: Tokenizer,
    index: float,
    options: argparse.Namespace,
) -> Row:
    """Return what one index came to."""
    random = np.random.default_rng(int(1000 * index) + options.documents)
    shares = popularity(index, random)
    row = Row(index)

    def questions(count: int) -> list[list[int]]:
        return [
            random.choice(DOCUMENTS, options.documents, replace=False, p=shares).tolist()
            for _ in range(count)
        ]

    async with (
        server.client() as client,
        asked(client, program, make_texts(tokenizer, random), options.kept) as runs,
    ):
        warm = questions(options.warm)
        for policy in POLICIES:
            await runs[policy].ask(warm)
        for turn in range(options.turns):
            burst = questions(options.questions)
            # The first of a pair has the worse luck when the machine gets busier.
            for policy in POLICIES if turn % 2 else POLICIES[::-1]:
                row.bursts[policy].append(await one_burst(server, runs[policy], burst))
    return row


async def one_burst(server: RunningServer, run: Asked, questions: list[list[int]]) -> Burst:
    """Ask some questions; return what that took."""
    pids = (await server.pids()).values()

    async def used() -> tuple[int, float]:
        computed = int((await server.counters())["prefill_tokens"])
        return computed, sum(map(on_cpu_seconds, pids))

    before = await used()
    seconds = await run.ask(questions)
    after = await used()
    return Burst(len(questions), seconds, after[0] - before[0], after[1] - before[1])


async def measure_simulated(
    clock: VirtualClock, wasm: bytes, index: float, options: argparse.Namespace
) -> Row:
    """Return what one index came to on a simulated device, in virtual seconds."""
    random = np.random.default_rng(int(1000 * index) + options.documents)
    shares = popularity(index, random)
    letters = random.integers(97, 123, (DOCUMENTS, DOCUMENT_TOKENS), np.uint8)  # a token a byte
    given = run_input([text.tobytes().decode() for text in letters], options.kept)
    row = Row(index)
    wanted = [
        random.choice(DOCUMENTS, options.documents, replace=False, p=shares).tolist()
        for _ in range(options.warm + options.turns * options.questions)
    ]
    kept, pages = pool_pages(options)
    kernel_options = KernelOptions(prefix_cache_share=kept / pages + 1e-6)
    for policy in POLICIES:
        async with WorkerRig(
            clock, COSTS, byte_assets(ends=False), pages, False, kernel_options
        ) as rig:
            data = json.dumps({**given, "policy": policy}).encode()
            live = await rig.start(wasm, data, limits=SIMULATED_LIMITS)
            ends = [options.warm + turn * options.questions for turn in range(options.turns + 1)]
            began, computed, asked = 0.0, 0, 0
            for end in ends:
                for number in range(asked, end):
                    question = {
                        "id": number,
                        "documents": wanted[number],
                        "question": QUESTION.format(number % 10_000),
                    }
                    live.deliver(json.dumps(question).encode())
                while len(live.messages) < end:
                    live.spoke.clear()
                    await live.spoke.wait()
                now = (clock.now(), rig.kernel.statistics()["prefill_tokens"])
                if asked:
                    burst = Burst(end - asked, now[0] - began, now[1] - computed, 0.0)
                    row.bursts[policy].append(burst)
                (began, computed), asked = now, end
            live.close_input()
            result = await live.ended
            if (result.status, result.exit_code) != ("exited", 0):
                raise SystemExit(f"the program failed: {result.logs}")
    return row


def run_input(texts: list[str], kept: int) -> dict[str, Any]:
    """Return what the program is given, but for its policy."""
    return {
        "documents": texts,
        "keep_tokens": kept * DOCUMENT_TOKENS,
        "max_tokens": ANSWER_TOKENS,
        "parallel": PARALLEL,
    }


def pool_pages(options: argparse.Namespace) -> tuple[int, int]:
    """Return the pages of the documents that may be kept, and of a pool that is no bound."""
    kept = options.kept * DOCUMENT_TOKENS // PAGE_TOKENS
    asked = 2 * PARALLEL * (options.documents * DOCUMENT_TOKENS // PAGE_TOKENS + 8)
    return kept, 2 * kept + 2 * asked


@contextmanager
def serving(folder: Path, model: Path, options: argparse.Namespace) -> Any:
    """A server whose prefix cache has the pages of so many documents; its pool is no bound."""
    page_bytes = SHAPE.layers * 2 * SHAPE.kv_heads * (SHAPE.hidden // SHAPE.heads) * 2 * PAGE_TOKENS
    kept, pages = pool_pages(options)
    config = folder / "symphony.toml"
    config.write_text(f"prefix_cache_share = {kept / pages + 1e-6}\n")
    with running_server(
        folder / "data", "--model", str(model), "--pool-bytes", str(pages * page_bytes),
        "--config", str(config), "--threads", str(options.threads), executor="torch",
    ) as server:  # fmt: skip
        yield server


async def measure_all(
    server: RunningServer, tokenizer: Tokenizer, options: argparse.Namespace
) -> list[Row]:
    """Measure each index and show it."""
    async with server.client() as client:
        wasm = build(REPOSITORY / "examples" / "rag" / "rust").read_bytes()
        program = (await client.programs.upload(wasm, "retrieval"))["id"]
    show()
    return [
        show(await measure(server, program, tokenizer, index, options)) for index in options.indices
    ]


def simulate_all(options: argparse.Namespace) -> list[Row]:
    """The same on a simulated device."""
    wasm = build(REPOSITORY / "examples" / "rag" / "rust").read_bytes()
    show()
    rows = []
    for index in options.indices:
        clock = VirtualClock()
        rows.append(show(clock.run(measure_simulated(clock, wasm, index, options))))
    return rows


def show(row: Row | None = None) -> Row:
    """Print a row, or what its columns are."""
    if row is None:
        print("index   own/s  automatic/s  ratio (of turns)    by CPU time  computed a question")
        return Row(0)
    spread = f"({row.ratios()[0]:.2f} to {row.ratios()[-1]:.2f})"
    tokens = f"{row.computed('own'):6.0f} {row.computed('automatic'):6.0f}"
    used = row.cpu("own")
    cpu = f"{row.cpu('automatic') / used:11.2f}" if used else "          -"
    rates = f"{row.rate('own'):6.1f}  {row.rate('automatic'):11.1f}"
    print(f"{row.index:5}  {rates}  {row.ratio:5.2f} {spread}  {cpu}  {tokens}", flush=True)
    return row


def draw(rows: list[Row], options: argparse.Namespace, folder: Path) -> None:
    """Write retrieval-N-KEPT.svg; needs matplotlib (`pip install '.[benchmarks]'`)."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "retrieval"})
    from matplotlib import pyplot

    figure, (rates, ratio) = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    indices = [row.index for row in rows]
    words = {"own": "the program's own policy", "automatic": "automatic prefix cache (LRU)"}
    for policy in POLICIES:
        rates.plot(indices, [row.rate(policy) for row in rows], "o-", label=words[policy])
    rates.set_ylabel("questions/s")
    rates.set_ylim(bottom=0)
    rates.legend(fontsize=8)
    ratio.plot(indices, [row.ratio for row in rows], "o-", color="#2b6cb0")
    for row in rows:
        ratio.plot([row.index] * len(row.ratios()), row.ratios(), ".", color="black", markersize=4)
    ratio.axhline(1, color="#444444", linewidth=1, linestyle="--")
    ratio.set_ylabel("own / automatic")
    ratio.set_ylim(bottom=0)
    for axes in (rates, ratio):
        axes.set_xscale("log")
        axes.set_xticks(indices, [str(index) for index in indices])
        axes.minorticks_off()
        axes.set_xlabel("Pareto index (left: few documents are asked for)")
    n = options.documents
    about = "one document" if n == 1 else f"{n} documents in varying order"
    figure.suptitle(
        f"Questions about {about}, of {DOCUMENTS}; memory for {options.kept}", fontsize=10
    )
    figure.savefig(folder / f"retrieval-{n}-{options.kept}.svg", metadata={"Date": None})
    pyplot.close(figure)


def serve_all(options: argparse.Namespace) -> list[Row]:
    """Measure on a server of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = make_checkpoint(folder / "model", SHAPE)
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        with serving(folder, model, options) as server:
            return asyncio.run(measure_all(server, tokenizer, options))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--indices", type=float, nargs="+", default=INDICES)
    parser.add_argument("--documents", type=int, default=1, help="each question is about")
    parser.add_argument("--kept", type=int, default=20, help="documents that either may keep")
    parser.add_argument("--warm", type=int, default=300, help="questions before what counts")
    parser.add_argument("--questions", type=int, default=40, help="of a turn")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--simulated", action="store_true")
    options = parser.parse_args()
    rows = simulate_all(options) if options.simulated else serve_all(options)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows]) + "\n")
    if options.plot is not None:
        draw(rows, options, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
