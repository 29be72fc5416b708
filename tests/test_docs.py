"""The documentation says what is true: contracts against their machine-readable copies."""

import re
import tomllib
from pathlib import Path

from symphony_kernel.protocol.errno import Errno

ROOT = Path(__file__).resolve().parents[1]
TABLE = tomllib.loads((ROOT / "runtime/symphony_runtime/abi/table.toml").read_text())
ABI = (ROOT / "docs/reference/abi.md").read_text()

# A heading of docs/reference/abi.md, and the call's line: `name(a, b: i64) -> i32`, kind.
CALL = re.compile(r"^### (\w+)\n`(\w+)\(([^)`]*)\)(?: -> (\w+))?`(?:, ([a-z ]+))?\.", re.MULTILINE)
KINDS = {"at once": "now", "suspends": "suspends", "does not return": "exit", "": "ticket"}


def described() -> dict[str, tuple[list[str], str, str]]:
    """Return the page's calls: parameters, result and kind of each."""
    found = {}
    for heading, call, parameters, result, kind in CALL.findall(ABI):
        assert heading == call
        assert (kind == "") == (result == "ticket"), call
        plain = [p.split(":")[0].strip() for p in parameters.split(",") if p.strip()]
        found[call] = (plain, "i32" if result == "ticket" else result, KINDS[kind])
    return found


def test_abi_page_and_table_have_the_same_calls() -> None:
    assert described() == {
        call["name"]: ([p.split(":")[0] for p in call["params"]], call["result"], call["kind"])
        for call in TABLE["call"]
    }


def test_abi_page_has_the_tables_numbers() -> None:
    numbers = TABLE["rights"] | TABLE["save_flags"] | TABLE["advice"]
    page = re.findall(r"^\| ([\w() ]+) \| (\d+) \|", ABI, re.MULTILINE)
    shown = {name.split("(")[0].upper().replace(" ", "_"): int(number) for name, number in page}
    assert shown == numbers


def test_errnos_equal_the_kernels_and_the_pages() -> None:
    assert TABLE["errno"] == {errno.name: errno.value for errno in Errno}
    page = dict(re.findall(r"\b(E[A-Z]+) (\d+)\b", ABI))
    assert {k: int(v) for k, v in page.items()} == TABLE["errno"]
