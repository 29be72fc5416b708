"""A picture in SVG: boxes, lines and texts, in colours that follow the reader's light or dark."""

from html import escape
from typing import Final

_STYLE: Final = """
svg { --ink: #1f2430; --soft: #667085; --line: #98a2b3; --paper: #ffffff; --box: #f2f4f7;
  --own: #e0e7ff; --own-line: #6172f3; --guest: #ffead5; --guest-line: #ef6820;
  --good: #d3f8df; --good-line: #16b364; --bad: #f04438; }
@media (prefers-color-scheme: dark) { svg { --ink: #e4e7ec; --soft: #98a2b3; --line: #667085;
  --paper: #1e2129; --box: #2a2f3a; --own: #2d3270; --own-line: #8098f9; --guest: #5b3213;
  --guest-line: #f38744; --good: #14472c; --good-line: #3ccb7f; --bad: #f97066; } }
text { font: 13px system-ui, sans-serif; fill: var(--ink); }
.small { font-size: 11px; } .soft { fill: var(--soft); } .strong { font-weight: 600; }
.mono { font-family: ui-monospace, monospace; font-size: 12px; }
.paper { fill: var(--paper); } .line { stroke: var(--line); fill: none; stroke-width: 1.4; }
.dash { stroke-dasharray: 5 4; } .bad { stroke: var(--bad); } .head { fill: var(--line); }
.box { fill: var(--box); stroke: var(--line); } .own { fill: var(--own); stroke: var(--own-line); }
.guest { fill: var(--guest); stroke: var(--guest-line); }
.good { fill: var(--good); stroke: var(--good-line); }
.none { fill: none; stroke: var(--line); stroke-dasharray: 5 4; }
.failed { fill: var(--bad); font-weight: 600; }
"""


class Picture:
    """What is drawn, from the top left corner, in pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, *words: str, kind: str = "box",
        small: bool = False,
    ) -> None:  # fmt: skip
        """Draw a box with centred words; the first line is strong where there are more."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
            ' rx="4"/>'
        )
        step = 15 if small else 18
        at = y + height / 2 - step * (len(words) - 1) / 2 + 4.5
        for number, each in enumerate(words):
            strong = "strong" if len(words) > 1 and number == 0 else ""
            lower = "small" if small or number else ""
            self.text(x + width / 2, at + step * number, each, f"{strong} {lower}", "middle")

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        self._parts.append(
            f'<text class="{kind.strip()}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )

    def line(self, *points: tuple[float, float], kind: str = "", arrow: bool = False) -> None:
        """Draw a line through points, with a head at its end."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline class="line {kind}" points="{path}"/>')
        if arrow:
            (x0, y0), (x, y) = points[-2:]
            length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
            dx, dy = (x - x0) / length, (y - y0) / length
            back = [(x - 8 * dx + 4 * s * dy, y - 8 * dy - 4 * s * dx) for s in (1, -1)]
            head = " ".join(f"{a:.1f},{b:.1f}" for a, b in [(x, y), *back])
            self._parts.append(f'<polygon class="head" points="{head}"/>')

    def arrow(
        self, *points: tuple[float, float], words: str = "", kind: str = "", above: bool = True
    ) -> None:
        """Draw an arrow, with words at the middle of its first piece."""
        self.line(*points, kind=kind, arrow=True)
        if words:
            (x0, y0), (x1, y1) = points[:2]
            if x0 == x1:
                self.text(x0 + 7, (y0 + y1) / 2 + 4, words, "small soft")
            else:
                y = (y0 + y1) / 2 + (-6 if above else 15)
                self.text((x0 + x1) / 2, y, words, "small soft", "middle")

    def render(self) -> str:
        """Return the picture's file."""
        size = f'viewBox="0 0 {self._width} {self._height}" width="{self._width}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} height="{self._height}" role="img">\n'
            f"<title>{escape(self._title)}</title>\n<style>{_STYLE}</style>\n"
            f'<rect class="paper" width="{self._width}" height="{self._height}" rx="6"/>\n'
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )
