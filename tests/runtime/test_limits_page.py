"""Every bound that a stranger meets stands in the limits module and in the documentation."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from symphony_kernel.protocol import limits
from symphony_runtime.limits_page import bounds, bounds_page, limits_page, numbers

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/limits.md"
KERNEL, RUNTIME = ROOT / "kernel/symphony_kernel", ROOT / "runtime/symphony_runtime"
BOUND = re.compile(r"_(MAX|MIN)$")
# Where what a stranger says comes in, and is looked at.
ENTRANCES = [
    *(KERNEL / "protocol").glob("*.py"),
    *(KERNEL / f"{name}.py" for name in ("arguments", "named_calls", "kv_requests", "syscalls",
      "constraint_calls", "process_table")),
    *(RUNTIME / f"{name}.py" for name in ("compiler", "validation", "outline")),
    *(RUNTIME / "outside").glob("*.py"),
    *(RUNTIME / "gateway").rglob("*.py"),
    *(RUNTIME / "worker/syscalls").glob("*.py"),
]  # fmt: skip
# Numbers there that no stranger meets. One of another kind belongs into the limits module.
WORKINGS = {
    # What a field or a number can be at all.
    "arguments": "_I64_MAX", "constraint_calls": "_HANDLE_MAX", "process_table": "INSTANCE_MAX",
    "syscalls": "SEQ_MAX", "generate_options": "_TOKEN_MAX", "outline": "_NUMBER_BYTES_MAX",
    "process": "_LOG_LEVEL_MAX _SLEEP_MS_MAX", "streaming": "_EVENTS_MAX", "figures": "_HITS_MAX",
    # What is kept at hand, or done at once.
    "options": "CACHED_BYTES_MAX", "process_table ": "_UNCLAIMED_MAX", "store": "_BATCH_MAX",
    "programs": "_CACHE_BYTES_MAX _KNOWN_MAX", "uses": "_NOTED_MAX", "rates": "_TENANTS_MAX",
    "figures ": "_TENANTS_MAX", "journal": "MEMORY_BYTES_MAX", "model": "_INLINE_BYTES_MAX",
    "kernel_figures": "AGE_SECONDS_MAX",
    # How long words are that repeat what was wrong, or describe something.
    "audit": "_KEPT_MAX _TEXT_MAX", "connections": "_WORDS_MAX", "links": "_WORDS_MAX",
    "outside": "_WORDS_MAX", "wasi": "_WORDS_MAX", "tool_server": "_REASON_MAX",
    "runs": "_REASON_MAX", "trace": "_CALL_NAME_MAX", "validation": "_PROBLEM_MAX",
    # What an operator has of a suspended or deleted tenant, and of the audit log.
    "administration": "_END_SECONDS_MAX", "forgetting": "_END_SECONDS_MAX",
    "audit ": "KEPT_SECONDS_MAX", "tail": "_SETTLE_SECONDS_MAX",
}  # fmt: skip


def numbers_of(path: Path) -> Iterator[str]:
    """Yield the bounds that a module sets itself, and does not derive from the limits module's."""
    tree = ast.parse(path.read_text())
    ours = {
        name.asname or name.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == limits.__name__
        for name in node.names
    }
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        within = list(ast.walk(node.value))
        own = any(isinstance(x, ast.Constant) and type(x.value) in (int, float) for x in within)
        if own and not ours & {x.id for x in within if isinstance(x, ast.Name)}:
            names = (x.id for t in targets for x in ast.walk(t) if isinstance(x, ast.Name))
            yield from (name for name in names if BOUND.search(name))


def test_the_page_has_the_tables_of_the_module() -> None:
    page = PAGE.read_text()
    assert limits_page() in page
    assert bounds_page() in page


def test_each_bound_says_of_what_it_is_one() -> None:
    assert [each.name for each in bounds() if not each.words] == []


def test_no_number_of_the_module_is_overlooked() -> None:
    """Nor one that is written over several lines, or without a part."""
    found = {each.name for each in numbers()}
    assert found == {name for name in vars(limits) if name.isupper()}
    assert all(each.part for each in numbers())


def test_no_bound_that_a_stranger_meets_stands_elsewhere() -> None:
    known: dict[str, set[str]] = {}
    for module, names in WORKINGS.items():
        known.setdefault(module.strip(), set()).update(names.split())
    found: dict[str, set[str]] = {}
    for path in ENTRANCES:
        if path.stem not in ("limits", "limit_table") or KERNEL not in path.parents:
            for name in numbers_of(path):
                found.setdefault(path.stem, set()).add(name)
    assert found == known
