"""The documentation says what is true: contracts against their machine-readable copies."""

import re
import tomllib
from pathlib import Path

from symphony_kernel.protocol.errno import Errno

ROOT = Path(__file__).resolve().parents[1]
TABLE = tomllib.loads((ROOT / "runtime/symphony_runtime/abi/table.toml").read_text())
ABI = (ROOT / "docs/reference/abi.md").read_text()

# One call in docs/reference/abi.md: `name(a, b: i64) -> i32`; several may stand in one row.
CALL = re.compile(r"`(\w+)\(([^)`]*)\)(?: -> (\w+))?`")


def described() -> dict[str, tuple[list[str], str]]:
    rows = [row for row in ABI.splitlines() if row.startswith("| `")]
    cells = [row.split("|")[1] for row in rows]
    found = {}
    for cell in cells:
        for call, parameters, result in CALL.findall(cell):
            plain = [p.split(":")[0].strip() for p in parameters.split(",") if p.strip()]
            found[call] = (plain, "i32" if result == "ticket" else result)
    return found


def test_abi_page_and_table_name_the_same_calls() -> None:
    table = {
        call["name"]: ([p.split(":")[0] for p in call["params"]], call["result"])
        for call in TABLE["call"]
    }
    assert described() == table


def test_abi_page_and_table_name_the_same_tickets() -> None:
    rows = " ".join(row.split("|")[1] for row in ABI.splitlines() if row.startswith("| `"))
    page = {call for call, _, result in CALL.findall(rows) if result == "ticket"}
    assert page == {call["name"] for call in TABLE["call"] if call["kind"] == "ticket"}


def test_abi_page_marks_the_calls_that_suspend() -> None:
    table = {call["name"]: call["kind"] for call in TABLE["call"]}
    for row in ABI.splitlines():
        if row.startswith("| `") and (cells := row.split("|")):
            names = [call for call, _, _ in CALL.findall(cells[1])]
            suspends = cells[2].strip().startswith("suspends")
            assert all((table[n] == "suspends") == suspends for n in names), row


def test_errnos_equal_the_kernels_and_the_pages() -> None:
    assert TABLE["errno"] == {errno.name: errno.value for errno in Errno}
    page = dict(re.findall(r"\b(E[A-Z]+) (\d+)\b", ABI))
    assert {k: int(v) for k, v in page.items()} == TABLE["errno"]
