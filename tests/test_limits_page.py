"""Every limit that a request can meet is in the limits module and in the documentation."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from symphony_kernel.protocol import limits

from tools.limits_page import bounds, bounds_page, limits_page, numbers

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/limits.md"
KERNEL, RUNTIME = ROOT / "kernel/symphony_kernel", ROOT / "runtime/symphony_runtime"
BOUND = re.compile(r"_(MAX|MIN)$")
# The modules that check requests of clients and programs.
ENTRANCES = [
    *(KERNEL / "protocol").glob("*.py"),
    *(KERNEL / f"{name}.py" for name in ("syscalls/table", "syscalls/validation",
      "syscalls/names", "syscalls/file_requests", "syscalls/grammar", "processes/table")),
    *(RUNTIME / "compiler").glob("*.py"),
    RUNTIME / "config/egress.py",
    *(RUNTIME / "abi").glob("*.py"),
    *(RUNTIME / "gateway").rglob("*.py"),
    *(RUNTIME / "worker/syscalls").glob("*.py"),
]  # fmt: skip
# Numbers there that no request meets. A limit of another kind belongs into the limits module.
WORKINGS = {
    # What a field or a number can be at all.
    ("syscalls/validation", "_I64_MAX"), ("syscalls/grammar", "_HANDLE_MAX"),
    ("processes/table", "INSTANCE_MAX"), ("syscalls/table", "SEQ_MAX"),
    ("protocol/generate_options", "_TOKEN_MAX"), ("compiler/module_outline", "_NUMBER_BYTES_MAX"),
    ("worker/syscalls/process", "_LOG_LEVEL_MAX"), ("worker/syscalls/process", "_SLEEP_MS_MAX"),
    ("gateway/api/run_streams", "_EVENTS_MAX"), ("gateway/api/runs/handlers", "_ID_MAX"),
    ("gateway/openai/stored/handlers", "_EVENTS_MAX"), ("gateway/metrics/counters", "_HITS_MAX"),
    # How long a role waits for the kernel.
    ("gateway/runs/cpu_reporting", "_ANSWER_SECONDS_MAX"),
    # What is kept at hand, or done at once.
    ("protocol/pred_options", "CACHED_BYTES_MAX"), ("processes/table", "_UNCLAIMED_MAX"),
    ("gateway/storage/store", "_BATCH_MAX"), ("gateway/programs/store", "_KNOWN_MAX"),
    ("gateway/programs/usage", "_NOTED_MAX"),
    ("gateway/admission/rate_limit", "_TENANTS_MAX"),
    ("gateway/metrics/counters", "_TENANTS_MAX"), ("gateway/metrics/history", "_TENANTS_MAX"),
    ("gateway/runs/events/stream", "MEMORY_BYTES_MAX"),
    ("worker/syscalls/model", "_INLINE_BYTES_MAX"), ("gateway/metrics/kernel", "AGE_SECONDS_MAX"),
    # How long words are that repeat what was wrong, or describe something.
    ("gateway/tenancy/audit", "_KEPT_MAX"), ("gateway/tenancy/audit", "_TEXT_MAX"),
    ("gateway/connections/connections", "_WORDS_MAX"), ("gateway/links/links", "_WORDS_MAX"),
    ("worker/syscalls/egress", "_DETAIL_MAX"), ("worker/syscalls/wasi", "_MESSAGE_MAX"),
    ("gateway/egress/mcp/server", "_REASON_MAX"), ("gateway/runs/service", "_REASON_MAX"),
    ("gateway/errors", "_NAME_SHOWN_MAX"), ("gateway/openai/errors", "_SHOWN_MAX"),
    ("gateway/runs/trace", "_CALL_NAME_MAX"), ("compiler/validation", "_PROBLEM_MAX"),
    ("gateway/http/program_values", "_SHOWN_MAX"), ("gateway/otlp/answers", "_TEXT_MAX"),
    ("gateway/otlp/requests", "_TEXT_MAX"), ("gateway/otlp/runs", "_TEXT_MAX"),
    # What an operator's traces have of a request and a run, which go on past it.
    ("gateway/otlp/requests", "_PARENT_CHARACTERS_MAX"),
    ("gateway/otlp/requests", "_STATE_CHARACTERS_MAX"), ("gateway/otlp/runs", "RUN_SPANS_MAX"),
    # What an operator has of a suspended or deleted tenant, and of the audit log.
    ("gateway/tenancy/administration", "_END_SECONDS_MAX"),
    ("gateway/tenancy/deletion", "_END_SECONDS_MAX"),
    ("gateway/tenancy/audit", "KEPT_SECONDS_MAX"),
    ("gateway/storage/crash_log", "_STORE_SECONDS_MAX"),
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


def test_limits_page_has_the_tables_of_the_module() -> None:
    page = PAGE.read_text()
    assert limits_page() in page
    assert bounds_page() in page


def test_limits_all_have_a_description() -> None:
    assert [each.name for each in bounds() if not each.words] == []


def test_limits_page_includes_every_number_of_the_module() -> None:
    """Nor one that is written over several lines, or without a part."""
    found = {each.name for each in numbers()}
    assert found == {name for name in vars(limits) if name.isupper()}
    assert all(each.part for each in numbers())


def test_limits_of_requests_are_all_in_the_limits_module() -> None:
    found: set[tuple[str, str]] = set()
    for path in ENTRANCES:
        if path.stem not in ("limits", "limit_table") or KERNEL not in path.parents:
            root = KERNEL if KERNEL in path.parents else RUNTIME
            module = path.relative_to(root).with_suffix("").as_posix()
            found |= {(module, name) for name in numbers_of(path)}
    assert found == WORKINGS
