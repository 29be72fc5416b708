"""What was found: lines as they come, and tables at the end."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Value = float | int | str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One case of one part. `ok` says whether it is as it should be; None: it is only a figure."""

    part: str
    shape: str
    case: str
    figures: dict[str, Value]
    ok: bool | None = None


@dataclass(slots=True)
class Report:
    """All findings of one call, and what it was about."""

    about: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Take a finding and print it."""
        self.findings.append(finding)
        figures = ", ".join(f"{key} {_shown(value)}" for key, value in finding.figures.items())
        verdict = {True: " ok", False: " WRONG", None: ""}[finding.ok]
        head = f"{finding.part} {finding.shape} {finding.case}"
        print(f"{head}: {figures}{verdict}", flush=True)

    def leave_out(self, what: str, why: str) -> None:
        """Something was not done."""
        self.left_out.append(f"{what}: {why}")
        print(f"left out: {what}: {why}", flush=True)

    @property
    def wrong(self) -> list[Finding]:
        """What is not as it should be."""
        return [finding for finding in self.findings if finding.ok is False]

    def markdown(self) -> str:
        """Return tables, one a part."""
        lines = [f"- {key}: {value}" for key, value in self.about.items()]
        for part in dict.fromkeys(finding.part for finding in self.findings):
            mine = [finding for finding in self.findings if finding.part == part]
            names = list(dict.fromkeys(name for each in mine for name in each.figures))
            lines += ["", f"## {part}", "", _line(["shape", "case", *names, "as it should be"])]
            lines.append("|" + " --- |" * (len(names) + 3))
            for each in mine:
                cells = [_shown(each.figures.get(name)) for name in names]
                verdict = {True: "yes", False: "NO", None: ""}[each.ok]
                lines.append(_line([each.shape, each.case, *cells, verdict]))
        if self.left_out:
            lines += ["", "## left out", "", *(f"- {what}" for what in self.left_out)]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        """Write gpu.json and gpu.md."""
        folder.mkdir(parents=True, exist_ok=True)
        whole = json.dumps(asdict(self), indent=2) + "\n"
        (folder / "gpu.json").write_text(whole, encoding="utf-8")
        (folder / "gpu.md").write_text(self.markdown(), encoding="utf-8")


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _shown(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)
