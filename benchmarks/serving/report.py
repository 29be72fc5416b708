"""What a measurement found: figures of each server and workload, as JSON and as Markdown."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.serving.floor import Rates, Sizes, floor
from benchmarks.serving.rounds import Measure, SeenRates
from benchmarks.serving.servers import Server
from benchmarks.serving.statistics import Ratio, Spread, figures, ratio_to_best
from benchmarks.serving.workloads import Column, Workload

_CHUNKS_MIN = 0.95  # a token that is a part of a letter has no chunk


@dataclass(frozen=True, slots=True)
class Cell:
    """What one server did with one workload, over all rounds.

    Attributes:
        rounds: Each figure, a value a round.
        first: Time to the first token, of all requests.
        between: Time between chunks of text.
        latency: Time to the end.
        requests: How many were measured.
        chunks: Chunks of text a token; well below 1 where a server sends several together.
        client_share: Of one core that the client took, in its busiest round.
        others_share: Of the machine that other processes took, median.
        cpu_seconds: Of the server a round, median.
        memory: Bytes that the server held, most.
        shares: In the workload's column, of the floor of each round; 1 is the floor.
        ceiling_shares: The same, of a machine whose products run at the registers' rate.
    """

    rounds: dict[Column, list[float]]
    first: Spread | None
    between: Spread | None
    latency: Spread | None
    requests: int
    chunks: float
    client_share: float
    others_share: float | None
    cpu_seconds: float | None
    memory: int | None
    shares: list[float]
    ceiling_shares: list[float]

    def value(self, column: Column) -> float:
        """Return the median over the rounds."""
        return median(self.rounds[column])


@dataclass(frozen=True, slots=True)
class Findings:
    """All cells by (workload, server), and what the first server is worth beside the others."""

    servers: list[str]
    workloads: list[Workload]
    cells: dict[tuple[str, str], Cell]
    floors: dict[str, float | None]
    ratios: dict[str, Ratio]
    rates: Rates

    def cell(self, workload: Workload, server: str) -> Cell:
        """Return a cell."""
        return self.cells[workload.name, server]


def find(
    servers: Sequence[str],
    workloads: Sequence[Workload],
    measures: Sequence[Measure],
    seen: Sequence[SeenRates],
    sizes: Sizes,
    threads: int,
) -> Findings:
    """Return what the rounds found. `seen` holds the machine before the rounds and after each."""
    turns = 1 + max(measure.turn for measure in measures)
    rates = [_between(seen[t].of(threads), seen[t + 1].of(threads)) for t in range(turns)]
    cells: dict[tuple[str, str], Cell] = {}
    floors: dict[str, float | None] = {}
    ratios: dict[str, Ratio] = {}
    for workload in workloads:
        bounds = [floor(workload, sizes, rate) for rate in rates]
        ceilings = [
            None if at_ceiling is None else floor(workload, sizes, at_ceiling)
            for at_ceiling in (rate.at_ceiling() for rate in rates)
        ]
        known = [bound for bound in bounds if bound is not None]
        floors[workload.name] = median(known) if known else None
        for server in servers:
            own = [m for m in measures if (m.workload, m.server) == (workload.name, server)]
            cells[workload.name, server] = _cell(workload, own, bounds, ceilings)
        if len(servers) > 1:
            column = {s: cells[workload.name, s].rounds[workload.column] for s in servers}
            ours = column.pop(servers[0])
            ratios[workload.name] = ratio_to_best(ours, column, workload.column.more_is_better)
    return Findings(list(servers), list(workloads), cells, floors, ratios, _median_rates(rates))


def _median_rates(rates: Sequence[Rates]) -> Rates:
    ceilings = [rate.ceiling for rate in rates if rate.ceiling is not None]
    return Rates(
        median(rate.bandwidth for rate in rates),
        median(rate.operations for rate in rates),
        median(ceilings) if ceilings else None,
    )


def _between(before: Rates, after: Rates) -> Rates:
    ceiling = None
    if before.ceiling is not None and after.ceiling is not None:
        ceiling = (before.ceiling + after.ceiling) / 2
    return Rates(
        (before.bandwidth + after.bandwidth) / 2,
        (before.operations + after.operations) / 2,
        ceiling,
    )


def _cell(
    workload: Workload,
    measures: Sequence[Measure],
    bounds: Sequence[float | None],
    ceilings: Sequence[float | None],
) -> Cell:
    requests = [request for measure in measures for request in measure.requests]
    per_round = [figures(workload, measure.requests) for measure in measures]
    rounds = {column: [found[column] for found in per_round] for column in per_round[0]}
    others = [m.others_share for m in measures if m.others_share is not None]
    cpu = [m.server_cpu for m in measures if m.server_cpu is not None]
    memory = [m.memory for m in measures if m.memory is not None]
    return Cell(
        rounds,
        Spread.of([r.to_first for r in requests]),
        Spread.of([gap for r in requests for gap in r.between]),
        Spread.of([r.latency for r in requests]),
        len(requests),
        sum(len(r.texts) for r in requests) / sum(r.completion_tokens for r in requests),
        max(m.client_cpu / m.wall for m in measures),
        median(others) if others else None,
        median(cpu) if cpu else None,
        max(memory) if memory else None,
        _shares(workload, measures, rounds[workload.column], bounds),
        _shares(workload, measures, rounds[workload.column], ceilings),
    )


def _shares(
    workload: Workload,
    measures: Sequence[Measure],
    values: Sequence[float],
    bounds: Sequence[float | None],
) -> list[float]:
    """Return each round's share of that round's bound, where there is one."""
    more = workload.column.more_is_better
    pairs = ((value, bounds[m.turn]) for m, value in zip(measures, values, strict=True))
    return [value / b if more else b / value for value, b in pairs if b is not None]


# --- JSON ----------------------------------------------------------------------------------------


def as_json(
    findings: Findings | None,
    measures: Sequence[Measure],
    seen: Sequence[SeenRates],
    servers: Sequence[Server],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Return everything, raw requests too, as JSON's kinds."""
    return {
        "benchmark": "serving",
        **about,
        "machine": machine(),
        "servers": [
            {
                "name": s.endpoint.name,
                "url": s.endpoint.url if s.process is None else None,
                "command": list(s.command),
                "start_seconds": s.start_seconds,
            }
            for s in servers
        ],
        "summary": None if findings is None else _summary(findings),
        "rates": [asdict(rate) for rate in seen],
        "measures": [measure.as_json() for measure in measures],
    }


def _summary(findings: Findings) -> dict[str, Any]:
    return {
        workload.name: {
            "workload": asdict(workload),
            "floor": findings.floors[workload.name],
            "ratio": asdict(findings.ratios[workload.name]) if findings.ratios else None,
            "servers": {
                server: {
                    **asdict(findings.cell(workload, server)),
                    "share_of_floor": _median(findings.cell(workload, server).shares),
                    "share_of_ceiling": _median(findings.cell(workload, server).ceiling_shares),
                }
                for server in findings.servers
            },
        }
        for workload in findings.workloads
    }


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def machine() -> dict[str, Any]:
    """Return what machine this is."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_bytes": pages * size,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


# --- Markdown ------------------------------------------------------------------------------------


def as_markdown(findings: Findings, about: Mapping[str, Any]) -> str:
    """Return the tables that docs/evaluation/performance.md shows."""
    parts = [
        f"{about['model']}, {about['dtype']}, {about['threads']} threads, medians of "
        f"{about['rounds']} interleaved rounds.",
        _throughputs(findings),
        _times(findings),
        f"Seen between the rounds: {findings.rates.bandwidth / 1e9:.1f} GB/s read, "
        f"{findings.rates.operations / 1e9:.0f} GFLOP/s of bf16 products{_ceiling(findings)}. "
        f"The client took at most {max(c.client_share for c in findings.cells.values()):.0%} "
        "of a core." + _disturbance(findings) + _coalesced(findings),
    ]
    return "\n\n".join(parts) + "\n"


def _throughputs(findings: Findings) -> str:
    head = ["", *(f"{w.name}: {w.column.words}, {w.column.unit}" for w in findings.workloads)]
    rows = [
        [server, *(_shown(w, findings.cell(w, server).value(w.column)) for w in findings.workloads)]
        for server in findings.servers
    ]
    bounds = [findings.floors[w.name] for w in findings.workloads]
    rows.append(
        [
            "**floor**",
            *(
                "" if b is None else _shown(w, b)
                for w, b in zip(findings.workloads, bounds, strict=True)
            ),
        ]
    )
    for server in findings.servers:
        shares = [_median(findings.cell(w, server).shares) for w in findings.workloads]
        rows.append([f"{server} of the floor", *("" if s is None else f"{s:.0%}" for s in shares)])
    if findings.rates.ceiling is not None:
        server = findings.servers[0]
        shares = [_median(findings.cell(w, server).ceiling_shares) for w in findings.workloads]
        cells = ("" if s is None else f"{s:.0%}" for s in shares)
        rows.append([f"{server} of the floor at the ceiling", *cells])
    if findings.ratios:
        found = [findings.ratios[w.name] for w in findings.workloads]
        row = [f"{r.value:.2f} ({r.low:.2f} to {r.high:.2f}), {r.best}" for r in found]
        rows.append([f"{findings.servers[0]} / best of the others", *row])
    return _table(head, rows)


def _shown(workload: Workload, value: float) -> str:
    if not workload.column.more_is_better:
        value *= 1e3
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _times(findings: Findings) -> str:
    head = ["milliseconds, p50 / p90 / p99", "first token", "between tokens", "whole request"]
    rows = []
    for workload in findings.workloads:
        for server in findings.servers:
            cell = findings.cell(workload, server)
            spreads = (cell.first, cell.between, cell.latency)
            rows.append([f"{workload.name}, {server}", *(_spread(s) for s in spreads)])
    return _table(head, rows)


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return ""
    values = (value * 1e3 for value in (spread.p50, spread.p90, spread.p99))
    return " / ".join(f"{v:.1f}" if v < 100 else f"{v:,.0f}" for v in values)


def _ceiling(findings: Findings) -> str:
    if findings.rates.ceiling is None:
        return ""
    return f" ({findings.rates.ceiling / 1e9:.0f} of registers alone, the ceiling)"


def _disturbance(findings: Findings) -> str:
    shares = [c.others_share for c in findings.cells.values() if c.others_share is not None]
    if not shares:
        return ""
    return f" Others took at most {max(shares):.0%} of the machine (median of a cell's rounds)."


def _coalesced(findings: Findings) -> str:
    """Say who sends several tokens at once, since time between chunks is no time between tokens."""
    seen = [
        f"{server} in {workload.name} ({cell.chunks:.2f} a token)"
        for workload in findings.workloads
        for server in findings.servers
        if workload.new > 1 and (cell := findings.cell(workload, server)).chunks < _CHUNKS_MIN
    ]
    return f" Fewer chunks than tokens came from {', '.join(seen)}." if seen else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write(folder: Path, name: str, document: Mapping[str, Any]) -> Path:
    """Write a JSON document into `folder`, whole or not at all."""
    path = folder / f"{name}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document) + "\n", encoding="utf-8")
    part.replace(path)
    return path
