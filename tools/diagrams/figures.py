"""Diagrams of measurements: they read what was recorded, next to themselves."""

import csv
import json
import math
from pathlib import Path
from typing import Any

from tools.diagrams.picture import Picture

ROOT = Path(__file__).resolve().parents[2]
_REACT = ROOT / "docs/how-it-works/figures/react-run.json"
_NEIGHBOUR = ROOT / "docs/how-it-works/figures/neighbour.csv"
_PLACEMENT = ROOT / "docs/how-it-works/figures/placement.jsonl"


def react() -> Picture:
    """Draw one ReACT run as a client and as a LIP, on one scale."""
    recorded: dict[str, Any] = json.loads(_REACT.read_text())
    client, lip = recorded["client"], recorded["lip"]
    left, right = 150, 830
    scale = (right - left) / max(client["ms"], lip["ms"])
    picture = Picture(860, 390, "One ReACT run as a client and as a LIP")

    def span(row: float, begin: float, ms: float, kind: str) -> None:
        picture.box(left + begin * scale, row, max(ms * scale, 1), 24, kind=kind)

    def lane(row: float, name: str) -> None:
        picture.text(20, row + 17, name, "small")
        picture.line((left, row + 26), (right, row + 26), kind="dash")

    one_way = recorded["one_way_ms"]
    requests = [each for each in client["spans"] if each["name"] == "request"]
    picture.text(20, 30, "As a client of a prompt server", "strong")
    picture.text(right, 30, f"{len(requests)} requests, {client['ms']:.0f} ms", "strong", "end")
    for row, name in ((48, "network"), (84, "server: request"), (120, "client: tool")):
        lane(row, name)
    for each in client["spans"]:
        tool = each["name"] == "tool"
        span(120 if tool else 84, each["begin"], each["ms"], "guest" if tool else "own")
    for each in requests:
        span(48, each["begin"] - one_way, one_way, "box")
        span(48, each["begin"] + each["ms"], one_way, "box")

    picture.text(20, 192, "As a LIP", "strong")
    picture.text(right, 192, f"1 request, {lip['ms']:.0f} ms", "strong", "end")
    for row, name in ((208, "network"), (244, "device: steps"), (280, "gateway: tool")):
        lane(row, name)
    span(208, 0, one_way, "box")
    span(208, lip["ms"] - one_way, one_way, "box")
    for each in lip["spans"]:
        at = lip["sent"] + each["begin"]
        tool = each["name"] == "tool"
        span(280 if tool else 244, at, each["ms"], "guest" if tool else "own")
    for ms in range(0, int(client["ms"]) + 1, 50):
        x = left + ms * scale
        picture.line((x, 320), (x, 326))
        picture.text(x, 341, f"{ms} ms", "small soft", "middle")
    picture.text(
        20, 372,
        f"Trace of {recorded['date']}, tiny model on two CPU cores. The client is {one_way} ms "
        f"away (it sleeps), the tool takes {recorded['tool_ms']} ms.",
        "small soft",
    )  # fmt: skip
    return picture


def neighbour() -> Picture:
    """Draw what a victim loses under each attack, with the bound 1.25."""
    with _NEIGHBOUR.open() as file:
        rows = list(csv.DictReader(file))
    left, right, top, step, most = 330, 820, 62, 22, 1.5
    height = top + step * len(rows) + 60
    picture = Picture(860, height, "A victim's share over its rate, for each attack")
    scale = (right - left) / most
    bottom = top + step * len(rows)
    picture.text(20, 28, "Share over rate of a victim with two streams, by attack", "strong")
    picture.text(20, 46, "1: it has its share; less is better; the bound is 1.25", "small soft")
    for number, row in enumerate(rows):
        y = top + step * number
        picture.text(left - 10, y + 14, row["attack"], "small", "end")
        picture.box(left, y + 2, float(row["135m"]) * scale, 8, kind="own")
        picture.box(left, y + 11, float(row["tiny"]) * scale, 8, kind="good")
    for value in (0, 0.5, 1, 1.25, 1.5):
        x = left + value * scale
        kind = "bad" if value == 1.25 else "dash"
        picture.line((x, top), (x, bottom), kind=kind)
        words = "failed small" if kind == "bad" else "small soft"
        picture.text(x, bottom + 16, f"{value:g}", words, "middle")
    picture.box(20, bottom + 32, 12, 12, kind="own")
    picture.text(38, bottom + 43, "135m", "small soft")
    picture.box(90, bottom + 32, 12, 12, kind="good")
    picture.text(108, bottom + 43, "tiny", "small soft")
    picture.text(
        right, bottom + 43,
        "python -m benchmarks.neighbour, medians of three rounds, machine A, "
        "24 November 2026, commit a84a26c", "small soft", "end",
    )  # fmt: skip
    return picture


def placement() -> Picture:
    """Draw goodput and p99 of each policy that places runs, by trace."""
    lines = _PLACEMENT.read_text().splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    cells = list(dict.fromkeys((row["trace"], row["nodes"], row["runs"]) for row in rows))
    top, step, gap, names, left, middle, wide = 66, 17, 30, 170, 180, 520, 240
    height = top + sum(gap + step for _ in cells) + step * len(rows) + 34
    picture = Picture(860, height, "Goodput and p99 of policies that place runs, by trace")
    picture.text(20, 28, "Placement in the simulator, by trace and policy", "strong")
    picture.text(left, 50, "runs/s and node with a first token within 1 s", "small soft")
    picture.text(middle, 50, "p99 of the time to the first token, s (log)", "small soft")
    y = top
    for cell in cells:
        mine = [row for row in rows if (row["trace"], row["nodes"], row["runs"]) == cell]
        most = max(row["goodput"] for row in mine)
        trace, nodes, runs = cell
        picture.text(20, y + 14, f"{trace}: {nodes:,} nodes, {runs:,} runs", "small strong")
        y += step + 4
        for row in mine:
            kind = "good" if row["policy"] == "symphony" else "own"
            p99, goodput = row["first_p99_s"], row["goodput"] / nodes
            picture.text(names, y + 11, row["policy"], "small", "end")
            share = max(row["goodput"] / most * wide, 1.0)
            picture.box(left, y, share, 12, kind=kind)
            picture.text(left + share + 6, y + 11, f"{goodput:.1f}", "small soft")
            size = max(math.log10(p99 / 0.01) / 4, 0.005) * wide  # from 10 ms to 100 s
            picture.box(middle, y, size, 12, kind=kind)
            picture.text(middle + size + 6, y + 11, f"{p99:.3g}", "small soft")
            y += step
        y += gap - 4
    picture.text(
        840, height - 12, "python -m benchmarks.cluster --json, virtual time", "small soft", "end"
    )
    return picture
