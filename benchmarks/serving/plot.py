"""Draws what a measurement found; needs matplotlib (`pip install '.[benchmarks]'`)."""

from pathlib import Path
from typing import Any

from benchmarks.serving.report import Findings
from benchmarks.serving.workloads import Workload

_COLOURS = ("#2b6cb0", "#dd8452", "#55a868", "#8172b3", "#937860", "#64b5cd")
_FLOOR = "#444444"


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
    if bound is not None:
        panel.axhline(bound * scale, color=_FLOOR, linestyle="--", linewidth=1)
        panel.annotate(
            "the machine's limit", (0.98, bound * scale), xycoords=("axes fraction", "data"),
            ha="right", va="bottom", fontsize=8, color=_FLOOR,
        )  # fmt: skip
        panel.margins(y=0.12)
    panel.set_title(f"{workload.name}: {column}", fontsize=10)
    panel.set_ylabel(column.unit)
    panel.set_ylim(bottom=0)
    _name(panel, findings)


def _times(panel: Any, findings: Findings, workload: Workload) -> None:
    kinds = (("first", "first token"), ("between", "between tokens"))
    width = 0.36
    for shift, (attribute, words) in enumerate(kinds):
        for place, server in enumerate(findings.servers):
            spread = getattr(findings.cell(workload, server), attribute)
            if spread is None:
                continue
            at = place + (shift - 0.5) * width
            low, high = spread.p50 * 1e3, spread.p99 * 1e3
            panel.bar(at, low, width, color=_COLOURS[shift], label=words if place == 0 else None)
            panel.plot([at, at], [low, high], color="black", linewidth=1)
    panel.set_yscale("log")
    panel.set_ylabel("ms: p50 (bar) to p99 (line)")
    panel.legend(fontsize=7)
    _name(panel, findings)


def _name(panel: Any, findings: Findings) -> None:
    panel.set_xticks(range(len(findings.servers)), findings.servers, rotation=20, fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
