"""Draws what a measurement found; needs matplotlib (`pip install '.[benchmarks]'`)."""

from pathlib import Path
from typing import Any

from benchmarks.serving.report import Findings
from benchmarks.serving.workloads import Workload

_COLOURS = ("#2b6cb0", "#dd8452", "#55a868", "#8172b3", "#937860", "#64b5cd")
_FLOOR = "#444444"
_FLOOR_DRAWN_MAX = 8  # times the best bar; farther away it would flatten them all


def draw(findings: Findings, title: str, folder: Path, name: str) -> list[Path]:
    """Write the figure and return the files.

    A panel each for the workloads' columns, with every round as a dot and the floor as a line, and
    below them the times to the first token and between tokens.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    count = len(findings.workloads)
    figure, axes = pyplot.subplots(
        2, count, figsize=(max(3.2 * count, 6), 6.4), squeeze=False, layout="constrained"
    )
    for panel, below, workload in zip(axes[0], axes[1], findings.workloads, strict=True):
        _column(panel, findings, workload)
        _times(below, findings, workload)
    figure.suptitle(title, fontsize=11)
    files = [folder / f"{name}.svg", folder / f"{name}.png"]
    for file in files:
        figure.savefig(file, dpi=120)
    pyplot.close(figure)
    return files


def _column(panel: Any, findings: Findings, workload: Workload) -> None:
    column = workload.column
    scale = 1.0 if column.more_is_better else 1e3
    for place, server in enumerate(findings.servers):
        cell = findings.cell(workload, server)
        colour = _COLOURS[place % len(_COLOURS)]
        panel.bar(place, cell.value(column) * scale, color=colour, width=0.7)
        seen = [value * scale for value in cell.rounds[column]]
        panel.plot([place] * len(seen), seen, ".", color="black", markersize=4)
    bound = findings.floors[workload.name]
    most = max(max(findings.cell(workload, s).rounds[column]) for s in findings.servers)
    if bound is not None and bound < _FLOOR_DRAWN_MAX * most:
        panel.axhline(bound * scale, color=_FLOOR, linestyle="--", linewidth=1)
        panel.annotate(
            "the machine's limit", (0.98, bound * scale), xycoords=("axes fraction", "data"),
            ha="right", va="bottom", fontsize=8, color=_FLOOR,
        )  # fmt: skip
    panel.margins(y=0.12)
    panel.set_title(f"{workload.name}: {column.words}", fontsize=10)
    panel.set_ylabel(column.unit)
    panel.set_ylim(bottom=0)
    _name(panel, findings)


def _times(panel: Any, findings: Findings, workload: Workload) -> None:
    kinds = (("first", "first token", "o"), ("between", "between tokens", "s"))
    for shift, (attribute, words, marker) in zip((-0.15, 0.15), kinds, strict=True):
        seen = False
        for place, server in enumerate(findings.servers):
            spread = getattr(findings.cell(workload, server), attribute)
            if spread is None:
                continue
            times = [spread.p50 * 1e3, spread.p90 * 1e3, spread.p99 * 1e3]
            colour = _COLOURS[place % len(_COLOURS)]
            panel.plot([place + shift] * 3, times, "_-", color=colour, linewidth=1.5)
            panel.plot([place + shift], times[:1], marker, color=colour, markersize=6)
            seen = True
        if seen:
            panel.plot([], [], marker, color="grey", label=words)
    panel.set_yscale("log")
    panel.set_ylabel("ms: p50, p90, p99")
    panel.set_xlim(-0.6, len(findings.servers) - 0.4)
    panel.legend(fontsize=7)
    _name(panel, findings)


def _name(panel: Any, findings: Findings) -> None:
    panel.set_xticks(range(len(findings.servers)), findings.servers, rotation=20, fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
