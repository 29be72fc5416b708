"""What drafts save and what they cost: two real servers in turns, with and without them.

    python -m benchmarks.speculation                           the 135m shape, 1 and 16 streams
    python -m benchmarks.speculation --shape 20m --rounds 10 --json figures.json

Greedy random weights soon repeat themselves, which would flatter drafts. So the layers here compute
all that they compute in a model of the shape, and add nothing: each token alone decides the next.
From most tokens a text of hundreds follows before one comes twice. Where a prompt's text is to
recur, its last token asks for that. Each answer has as many tokens as the text:

    echo        the prompt has the text to come, to the letter: the most that drafts can save
    edit        the same, but one token in sixteen of the prompt's is another one
    plain       the prompt has other tokens: nothing to draft
    misleading  the prompt has three tokens each of the text, and then another one: what is drafted
                first is always wrong
    mixed       of the streams every second is `echo`, the others are `plain`: the cost to others

One server has `--draft-tokens N`, the other 0. The one that is not measured is stopped (SIGSTOP).
Which one is first alternates. All answers must be the text, to the token; otherwise the command
fails. It prints the medians of the rounds' ratios (time without drafts over time with them: above 1
drafts are faster), the least and the most, the same of processor time, which other loads of the
machine disturb less, and drafted and accepted tokens. In `mixed` the times are the plain streams'.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import torch

from benchmarks.checkpoints import SHAPES, make_checkpoint, make_weights
from benchmarks.serving.processes import cpu_seconds, pause, resume

_START_SECONDS_MAX = 180
_SETTLED_SECONDS = 5.0  # machine code of programs is compiled behind the start
_EDITED_EACH = 16
_MATCHED = 3  # tokens that are looked up: `program/src/drafts.rs`
_WORKLOADS = ("echo", "edit", "plain", "misleading", "mixed")
_COUNTERS = re.compile(r"^symphony:draft_tokens(_accepted)?_total(?:\{[^}]*\})? (\S+)$", re.M)
Tokens = list[int]


@dataclass
class Server:
    """A server that runs, and what it was seen to do: by workload and streams."""

    pid: int
    url: str
    key: str
    model: str
    seconds: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    cpu: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    drafts: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def session(self) -> aiohttp.ClientSession:
        headers = {"Authorization": f"Bearer {self.key}"}
        return aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))

    async def complete(
        self, session: aiohttp.ClientSession, prompt: Tokens, tokens: int, stream: bool
    ) -> tuple[Tokens, float]:
        """Return the answer's tokens (none if it is streamed), and its seconds."""
        body = {
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": not stream, "stream": stream,
        }  # fmt: skip
        began = time.perf_counter()
        async with session.post(f"{self.url}/v1/completions", json=body) as answer:
            text = await answer.text()
        if answer.status != 200:
            sys.exit(f"{self.url}: {answer.status}: {text}")
        seconds = time.perf_counter() - began
        return [] if stream else json.loads(text)["choices"][0]["token_ids"], seconds

    async def counters(self, session: aiohttp.ClientSession) -> tuple[int, int]:
        """Return the tokens drafted so far, and the accepted ones."""
        await asyncio.sleep(1.1)  # a scrape is kept for a second
        async with session.get(f"{self.url}/metrics") as answer:
            found = _COUNTERS.findall(await answer.text())
        counts = {bool(accepted): int(float(count)) for accepted, count in found}
        return counts[False], counts[True]


def make_model(folder: Path, shape_name: str, dtype: str, seed: int) -> Path:
    """Write the checkpoint whose layers add nothing."""
    shape = replace(SHAPES[shape_name], tied=False)
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    weights = make_weights(shape, kind, seed)
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    return make_checkpoint(folder / "forgetful", shape, dtype, seed, weights)


@contextmanager
def serving(model: Path, dtype: str, drafts: int, threads: int) -> Iterator[Server]:
    """Start a server with drafts of at most so many tokens."""
    with tempfile.TemporaryDirectory(prefix="symphony-speculation-") as folder:
        data, log = Path(folder) / "data", Path(folder) / "log"
        command = [
            str(Path(sys.executable).parent / "symphony"), "serve", "--model", str(model),
            "--dtype", dtype, "--port", "0", "--data-dir", str(data),
            "--draft-tokens", str(drafts), "--max-decode-gap-ms", "0", "--threads", str(threads),
        ]  # fmt: skip
        with log.open("wb") as words:
            process = subprocess.Popen(command, stdout=words, stderr=words)
        try:
            deadline = time.monotonic() + _START_SECONDS_MAX
            while b"serving " not in log.read_bytes():
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"the server does not start:\n{log.read_text()}")
                time.sleep(0.1)
            url = json.loads((data / "server.json").read_text())["url"]
            key = (data / "default.key").read_text().strip()
            yield Server(process.pid, url, key, model.name)
        finally:
            resume(process.pid)
            process.terminate()
            process.wait()


async def find_texts(server: Server, vocab: int, count: int, tokens: int) -> list[Tokens]:
    """Return texts of the model in which no token comes twice: first tokens, and what follows."""
    found: list[Tokens] = []
    picks = random.Random(1)
    async with server.session() as session:
        while len(found) < count:
            first = picks.randrange(300, vocab)
            answer, _ = await server.complete(session, [first], tokens, False)
            if len({first, *answer}) == tokens + 1:
                found.append([first, *answer])
    return found


def make_prompt(kind: str, text: Tokens, other: Tokens, vocab: int, picks: random.Random) -> Tokens:
    """Return a prompt behind which the text after its first token comes; it ends with that one."""
    if kind == "plain":
        return [*other[1:], text[0]]
    if kind == "misleading":
        parts = [
            [*text[at : at + _MATCHED], picks.randrange(300, vocab)]
            for at in range(0, len(text) - _MATCHED, _MATCHED + 1)
        ]
        return [*itertools.chain(*parts), text[0]]
    copy = list(text)
    if kind == "edit":
        for at in range(_EDITED_EACH // 2, len(copy), _EDITED_EACH):
            copy[at] = picks.randrange(300, vocab)
    return [*copy, text[0]]


async def measure(
    server: Server, workload: str, texts: list[Tokens], vocab: int, turn: int, stream: bool
) -> float:
    """Return the seconds of all streams together, of `mixed`: of the plain ones on average."""
    picks = random.Random(turn)
    kinds = [
        ("echo", "plain")[number % 2] if workload == "mixed" else workload
        for number in range(len(texts))
    ]
    # A prompt is new in each round, so that none is cached.
    salt = [picks.randrange(300, vocab) for _ in range(16)]
    prompts = [
        [*salt, *make_prompt(kind, text, texts[number - 1][::-1], vocab, picks)]
        for number, (kind, text) in enumerate(zip(kinds, texts, strict=True))
    ]
    async with server.session() as session:
        began = time.perf_counter()
        answers = await asyncio.gather(
            *(
                server.complete(session, prompt, len(text) - 1, stream)
                for prompt, text in zip(prompts, texts, strict=True)
            )
        )
        seconds = time.perf_counter() - began
    for (answer, _), text in zip(answers, texts, strict=True):
        if not stream and answer != text[1:]:
            sys.exit(f"{workload}: an answer is not the model's text")
    if workload != "mixed":
        return seconds
    return statistics.mean(
        took for (_, took), kind in zip(answers, kinds, strict=True) if kind == "plain"
    )


async def compare(options: argparse.Namespace, servers: dict[str, Server], vocab: int) -> None:
    """Measure all workloads, each in all rounds."""
    most = max(options.streams)
    pause(servers["drafts"].pid)
    texts = await find_texts(servers["none"], vocab, most, options.tokens)
    pause(servers["none"].pid)
    for workload in options.workloads:
        for streams in options.streams:
            if workload == "mixed" and streams == 1:
                continue
            for turn in range(-1, options.rounds):  # the first one does not count
                order = list(servers.values())
                for server in order if turn % 2 else order[::-1]:
                    await _measure_turn(server, workload, texts[:streams], vocab, turn, options)
            print(_line(workload, streams, servers), flush=True)


async def _measure_turn(
    server: Server,
    workload: str,
    texts: list[Tokens],
    vocab: int,
    turn: int,
    options: argparse.Namespace,
) -> None:
    cell = workload, len(texts)
    resume(server.pid)
    async with server.session() as session:
        before = await server.counters(session)
        cpu = cpu_seconds(server.pid)
        seconds = await measure(server, workload, texts, vocab, turn, options.stream)
        cpu = cpu_seconds(server.pid) - cpu
        after = await server.counters(session)
    pause(server.pid)
    if turn >= 0:
        server.seconds.setdefault(cell, []).append(seconds)
        server.cpu.setdefault(cell, []).append(cpu)
        counts = server.drafts.setdefault(cell, [0, 0])
        counts[0] += after[0] - before[0]
        counts[1] += after[1] - before[1]


def _ratio(none: list[float], drafts: list[float]) -> str:
    """Return the rounds' ratios in words: times without drafts over those with them."""
    found = sorted(before / now for before, now in zip(none, drafts, strict=True))
    return f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"


def _line(workload: str, streams: int, servers: dict[str, Server]) -> str:
    cell = workload, streams
    none, drafts = servers["none"], servers["drafts"]
    drafted, accepted = drafts.drafts[cell]
    return (
        f"{workload:10} {streams:3} streams"
        f"  time {_ratio(none.seconds[cell], drafts.seconds[cell])}"
        f"  processor {_ratio(none.cpu[cell], drafts.cpu[cell])}"
        f"  drafted {drafted}, accepted {accepted}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="135m")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--workloads", nargs="+", choices=_WORKLOADS, default=list(_WORKLOADS))
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--draft-tokens", type=int, default=13)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--stream", action="store_true", help="answers are streamed, not compared")
    parser.add_argument("--json", type=Path, help="write the times and counts there too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="symphony-speculation-") as folder:
        model = make_model(Path(folder), options.shape, options.dtype, 0)
        vocab = SHAPES[options.shape].vocab
        with (
            serving(model, options.dtype, options.draft_tokens, options.threads) as drafts,
            serving(model, options.dtype, 0, options.threads) as none,
        ):
            time.sleep(_SETTLED_SECONDS)
            servers = {"drafts": drafts, "none": none}
            print(
                f"{options.shape} {options.dtype}, {options.tokens} tokens, {os.cpu_count()} cores"
            )
            asyncio.run(compare(options, servers, vocab))
    if options.json is not None:
        told = {
            f"{workload} {streams}": {
                "none": none.seconds[workload, streams],
                "drafts": drafts.seconds[workload, streams],
                "processor none": none.cpu[workload, streams],
                "processor drafts": drafts.cpu[workload, streams],
                "counts": drafts.drafts[workload, streams],
            }
            for workload, streams in drafts.seconds
        }
        options.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
