"""The tables of docs/reference/limits.md, made of the limits module (`python -m` of this module).

Those of `limit_table` first, one for each thing that is limited. Then the bounds that are the same
for all tenants: the numbers of `limits` whose names end in _MAX or _MIN and that no row is about,
with what their comments say.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

from symphony_kernel.protocol import limit_table, limits
from symphony_kernel.protocol.limit_table import LIMITS, Limit, Scope

_OF = {
    Scope.RUN: "A run, its children included",
    Scope.PROGRAM: "A program",
    Scope.INSTANCE: "An instance",
    Scope.TENANT: "A tenant",
}
_BOUND = re.compile(r"[A-Z][A-Z0-9_]*_(?:MAX|MIN)")
_PART = re.compile(r"# --- (.*?) -+$")
_NUMBER = re.compile(r"([A-Z][A-Z0-9_]*)(?:: Final)? = [^#]*(?:# (.*))?")


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the limits module: in which part it stands, and what its comment says."""

    part: str
    name: str
    words: str

    @property
    def value(self) -> float:
        found: float = getattr(limits, self.name)
        return found


def numbers() -> Iterator[Number]:
    """Yield all numbers of the limits module, in its order."""
    part = ""
    above: list[str] = []  # lines of the comment before
    for line in inspect.getsource(limits).splitlines():
        if head := _PART.match(line):
            part = head.group(1)
        elif found := _NUMBER.match(line):
            yield Number(part, found.group(1), " ".join([*above, found.group(2) or ""]).strip())
        if line.startswith("# ") and not head:
            above.append(line.removeprefix("# "))
        else:
            above = []


def bounds() -> list[Number]:
    """Return the bounds that a caller can meet and that are the same for all tenants."""
    rows = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(limit_table)))
        if isinstance(node, ast.Attribute)
    }
    return [each for each in numbers() if _BOUND.fullmatch(each.name) and each.name not in rows]


def limits_page() -> str:
    """Return the tables of what a tenant or a run may have, one for each thing that is limited."""
    parts = []
    for of, title in _OF.items():
        rows = [_row(limit) for limit in LIMITS if limit.scope is of]
        head = "| limit | is | default | at most | looks | when it is reached |\n"
        parts.append(
            f"### {title}\n\n{head}| --- | --- | --- | --- | --- | --- |\n" + "".join(rows)
        )
    return "\n".join(parts)


def bounds_page() -> str:
    """Return the tables of the bounds that are the same for all tenants, one for each part."""
    parts: dict[str, list[str]] = {}
    for each in bounds():
        rows = parts.setdefault(each.part, [])
        rows.append(f"| `{each.name}` | {_shown(each.value)} | {each.words} |\n")
    head = "| number | value | is |\n| --- | --- | --- |\n"
    return "\n".join(f"### {part}\n\n{head}{''.join(rows)}" for part, rows in parts.items())


def _row(limit: Limit) -> str:
    ceiling = "fixed" if limit.ceiling is None else _shown(limit.ceiling)
    cells = (
        f"`{limit.name}`",
        limit.what,
        _shown(limit.default),
        ceiling,
        limit.enforced_by,
        limit.effect,
    )
    return f"| {' | '.join(cells)} |\n"


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:,}"


if __name__ == "__main__":
    print(f"{limits_page()}\n{bounds_page()}")  # noqa: T201 - that is what it is for
