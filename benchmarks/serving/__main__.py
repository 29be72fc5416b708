"""Symphony and other servers of the OpenAI protocol, measured beside each other.

    python -m benchmarks.serving --servers symphony,llama.cpp,vllm --model 135m \\
        --workloads one,prefill,sixteen --rounds 5 --out results

starts the servers one after the other, lets each answer a little of everything, and then drives
them in turn, one at a time while the others are stopped. All get the same prompts, no two of
which are alike, and must make exactly the tokens asked for. Between the rounds the machine's own
limits are measured. --out gets serving-MODEL.json (every request), .md (tables), .svg and .png.

Workloads: one, prefill, sixteen, latency, requests (closed loop), open (Poisson arrivals); change
one as in sixteen:streams=8:new=64, name your own as in eight:of=sixteen:streams=8.

The peers are installed by the scripts in benchmarks/peers into the folder --peers. A server that
runs already is measured by --url NAME=http://HOST:PORT (and --key NAME=KEY).
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.serving import plot, report
from benchmarks.serving.client import Endpoint, MeasureError
from benchmarks.serving.floor import Sizes
from benchmarks.serving.report import Findings, find
from benchmarks.serving.rounds import Rounds
from benchmarks.serving.servers import (
    LAUNCHES,
    REPOSITORY,
    Server,
    ServerError,
    Setting,
    first_model,
    start,
)
from benchmarks.serving.workloads import Prompts, Workload, parse_workload

_CONTEXT_STEP = 256  # what llama.cpp rounds a slot's context to


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    peers = os.environ.get("SYMPHONY_PEERS") or REPOSITORY / "build" / "peers"
    parser.add_argument(
        "--servers", default="symphony", help=f"by commas, of {', '.join(LAUNCHES)}; or empty"
    )
    parser.add_argument("--url", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--key", action="append", default=[], metavar="NAME=KEY")
    parser.add_argument(
        "--model", default="135m", help=f"{', '.join(SHAPES)} (random), or a checkpoint's folder"
    )
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument(
        "--quantize", choices=("none", "int8", "int4"), default="none",
        help="the weights, of Symphony and llama.cpp (Q8_0, Q4_0)",
    )  # fmt: skip
    parser.add_argument("--workloads", default="one,prefill,sixteen", help="by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "serving")
    parser.add_argument(
        "--peers", type=Path, default=Path(peers), help="their folder, else SYMPHONY_PEERS"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=OPTION",
        help="more for a server's command line, e.g. --option symphony=--no-journal",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    given.servers = [name for name in given.servers.split(",") if name]
    unknown = [name for name in given.servers if name not in LAUNCHES]
    if unknown:
        parser.error(f"no such server: {', '.join(unknown)}; there are {', '.join(LAUNCHES)}")
    if not given.servers and not given.url:
        parser.error("name a server with --servers or --url")
    if given.rounds < 1:
        parser.error("--rounds is at least 1")
    try:
        given.workloads = [parse_workload(text) for text in given.workloads.split(",")]
        given.urls = [_pair(text) for text in given.url]
        given.keys = dict(_pair(text) for text in given.key)
        given.options = [_pair(text) for text in given.option]
    except ValueError as error:
        parser.error(str(error))
    return given


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


def _model(given: argparse.Namespace) -> Path:
    """Return the checkpoint's folder; a random one is made if it is not there."""
    if given.model not in SHAPES:
        folder = Path(given.model).resolve()
        if not (folder / "config.json").exists():
            raise ServerError(f"{folder} is no checkpoint, nor is it one of {', '.join(SHAPES)}")
        return folder
    name = given.model if given.dtype == "bf16" else f"{given.model}-{given.dtype}"
    made: Path = given.peers.resolve() / "models" / name
    if not (made / "model.safetensors").exists():
        make_checkpoint(made, SHAPES[given.model], given.dtype)
    return made


def _setting(given: argparse.Namespace, model: Path, work: Path) -> Setting:
    options: dict[str, list[str]] = {}
    for name, option in given.options:
        options.setdefault(name, []).extend(option.split(" "))
    streams = max(w.requests if w.rate else w.streams for w in given.workloads)
    longest = max(w.prompt + w.new for w in given.workloads)
    context = -(-longest // _CONTEXT_STEP) * _CONTEXT_STEP
    peers = given.peers.resolve()
    return Setting(
        model, peers, work, given.threads, streams, context, given.dtype, given.quantize, options
    )


@asynccontextmanager
async def _running(given: argparse.Namespace, setting: Setting) -> AsyncIterator[list[Server]]:
    """Start all servers, stopped; end them when the block ends, however it does."""
    servers: list[Server] = []
    try:
        for name in given.servers:
            server = await start(name, setting)
            servers.append(server)
            server.pause()
            print(f"{name} was ready after {server.start_seconds:.1f} s", file=sys.stderr)
        for name, url in given.urls:
            key = given.keys.get(name)
            model = await first_model(url.rstrip("/"), key)
            servers.append(Server(Endpoint(name, url.rstrip("/"), model, key)))
        yield servers
    finally:
        for server in servers:
            server.stop()


def _about(given: argparse.Namespace) -> dict[str, Any]:
    model = f"random {given.model}" if given.model in SHAPES else Path(given.model).name
    return {
        "model": model,
        "dtype": given.dtype if given.quantize == "none" else f"{given.dtype}, {given.quantize}",
        "threads": given.threads,
        "rounds": given.rounds,
        "seed": given.seed,
    }


async def _measure(given: argparse.Namespace, name: str) -> Findings:
    model = _model(given)
    work = given.out / "logs"
    work.mkdir(parents=True, exist_ok=True)
    workloads: list[Workload] = given.workloads
    async with _running(given, _setting(given, model, work.resolve())) as servers:
        names = [server.endpoint.name for server in servers]
        sizes = Sizes.of(model, 2 if given.dtype == "bf16" else 4, given.quantize)
        rounds = Rounds(servers, workloads, Prompts(model, given.seed), given.threads, given.seed)
        for server in servers:
            server.resume()
            await rounds.warm_up(server)
            server.pause()
        rounds.measure_rates()
        for turn in range(given.rounds):
            await rounds.round(turn)
            findings = find(names, workloads, rounds.measures, rounds.rates, sizes, given.threads)
            # After each round, so that a failure in the last loses nothing.
            about = {**_about(given), "rounds": turn + 1}
            document = report.as_json(findings, rounds.measures, rounds.rates, servers, about)
            report.write(given.out, name, document)
            tables = report.as_markdown(findings, about)
            (given.out / f"{name}.md").write_text(tables, encoding="utf-8")
    print(tables)
    return findings


def main(arguments: list[str]) -> int:
    """Measure what the command line describes; return the exit code."""
    given = _parse(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    about = _about(given)
    name = f"serving-{about['model'].removeprefix('random ')}"
    if given.quantize != "none":
        name += f"-{given.quantize}"
    # As Ctrl-C does: no server may stay behind.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        findings = asyncio.run(_measure(given, name))
    except KeyboardInterrupt:
        print("interrupted; the rounds that were done are kept", file=sys.stderr)
        return 130
    except (MeasureError, ServerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    title = f"{about['model']}, {about['dtype']}, {about['threads']} threads"
    try:
        plot.draw(findings, title, given.out, name)
    except ImportError:
        print("no plot: matplotlib is missing (pip install '.[benchmarks]')", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
