"""The pages about writing programs show programs that compile, and the limits that hold."""

import re
from pathlib import Path

import pytest
from symphony_kernel.protocol import limits
from symphony_runtime.cli.projects import build, new

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "programs.md").read_text()
ENTRY = "#[symphony::main]\n"
SHOWN = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    *sorted(ROOT.glob("docs/get-started/*.md")),
]
SHOWN += sorted(ROOT.glob("docs/guides/*.md"))
TESTS = ROOT / "docs" / "guides" / "testing.md"  # what it shows runs natively


def shown(page: Path) -> list[str]:
    """Return the Rust programs of a page."""
    found: list[str] = re.findall(r"```rust\n(.*?)```", page.read_text(), re.DOTALL)
    return found


@pytest.mark.slow
def test_pages_rust_programs_compile(tmp_path: Path) -> None:
    texts = [text for page in SHOWN if page != TESTS for text in shown(page)]
    assert len(texts) > 10
    entry = next(text for text in texts if ENTRY in text)
    modules = [
        f"pub mod part_{number} {{ {text.replace(ENTRY, '').replace('async fn', 'pub async fn')} }}"
        for number, text in enumerate(texts)
        if text is not entry
    ]
    project = new("shown", "rust", tmp_path)
    (project / "src" / "lib.rs").write_text("\n".join([entry, *modules]))
    assert build(project).is_file()


def test_page_about_tests_shows_what_the_sdk_runs() -> None:
    readme = shown(ROOT / "guest_sdk" / "rust" / "README.md")  # each is a doctest
    assert shown(TESTS)
    assert [text for text in shown(TESTS) if text not in readme] == []


def test_guide_limits_are_the_servers() -> None:
    rows = {
        "memory of an instance": f"{limits.RUN_MEMORY_BYTES_MAX >> 20} MiB",
        "computing in the guest": f"{limits.RUN_CPU_MS_MAX // 1000} s; waiting does not count",
        "a run from start to end": f"{limits.RUN_WALL_MS_MAX // 3_600_000} h",
        "input; one message; all output": "; ".join(
            f"{size >> 20} MiB"
            for size in (
                limits.RUN_INPUT_BYTES_MAX,
                limits.MESSAGE_BYTES_MAX,
                limits.RUN_OUTPUT_BYTES_MAX,
            )
        ),
        "handles; tickets": f"{limits.INSTANCE_HANDLES_MAX:,}; {limits.RUN_TICKETS_MAX:,}",
        "tokens of one `pred`; of a tree": (
            f"{limits.PRED_TOKENS_MAX:,}; {limits.PRED_TREE_TOKENS_MAX}"
        ),
        "KV entries held at once": f"{limits.RUN_KV_TOKENS_MAX:,}",
        "children alive; their depth": f"{limits.RUN_CHILDREN_MAX}; {limits.RUN_CHILD_DEPTH_MAX}",
    }
    assert [k for k, v in rows.items() if f"| {k} | {v} |" not in GUIDE] == []
