"""All diagrams, each with its file."""

from pathlib import Path

from tools.diagrams.figures import ROOT, neighbour, placement, react
from tools.diagrams.pictures import crash, pages, processes, scheduling, tiers

_FOLDER = ROOT / "docs/how-it-works/figures"


def drawn_diagrams() -> dict[Path, str]:
    """Return the content of each diagram's file."""
    return {
        _FOLDER / f"{draw.__name__}.svg": draw().render()
        for draw in (processes, react, pages, tiers, scheduling, crash, neighbour, placement)
    }
