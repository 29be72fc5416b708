"""Draws what was measured; needs matplotlib (`pip install '.[benchmarks]'`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.evaluation.report import Row
from benchmarks.evaluation.systems import PROGRAMS, SYSTEMS

_COLOURS = dict(zip(SYSTEMS, ("#2b6cb0", "#64b5cd", "#55a868", "#dd8452"), strict=True))
_WIDTH = 0.2


def draw(rows: Sequence[Row], title: str, folder: Path) -> list[Path]:
    """Write evaluation-RTT.svg and .png for each round trip; return the files.

    A panel an application: rates as shares of what programs reach, at each concurrency, with the
    extremes of the rounds.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "evaluation"})
    from matplotlib import pyplot

    files = []
    for round_trip in sorted({row.cell.round_trip_ms for row in rows}):
        shown = [row for row in rows if row.cell.round_trip_ms == round_trip]
        names = list(dict.fromkeys(row.cell.application for row in shown))
        figure, axes = pyplot.subplots(
            1, len(names), figsize=(2.4 * len(names) + 1, 3.4), squeeze=False, layout="constrained"
        )
        for panel, name in zip(axes[0], names, strict=True):
            _panel(panel, name, [row for row in shown if row.cell.application == name])
        axes[0][0].set_ylabel("applications/s, programs = 1")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(SYSTEMS), fontsize=8)
        figure.suptitle(f"{title}, client {round_trip} ms away", fontsize=10)
        for suffix, more in ((".svg", {"metadata": {"Date": None}}), (".png", {"dpi": 120})):
            file = folder / f"evaluation-{round_trip}{suffix}"
            figure.savefig(file, **more)
            files.append(file)
        pyplot.close(figure)
    return files


def _panel(panel: Any, name: str, rows: Sequence[Row]) -> None:
    for place, system in enumerate(SYSTEMS):
        for at, row in enumerate(rows):
            own, rate = row.rates.get(PROGRAMS), row.rates.get(system)
            if own is None or rate is None:
                continue
            share, x = rate.median / own.median, at + (place - 1.5) * _WIDTH
            label = system if at == 0 else None
            panel.bar(x, share, width=_WIDTH, color=_COLOURS[system], label=label)
            panel.plot([x, x], [rate.low / own.median, rate.high / own.median], "k-", linewidth=1)
    panel.axhline(1, color="#444444", linewidth=1, linestyle="--")
    panel.set_xticks(range(len(rows)), [str(row.cell.concurrency) for row in rows])
    panel.set_xlabel("at once")
    panel.set_title(name, fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
