"""Skips are named: what a machine lacks fails a test where `SYMPHONY_REQUIRE` names it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import NEEDS, SWITCH

ROOT = Path(__file__).resolve().parents[1]
HELPER = ROOT / "tests" / "support" / "requirements.py"
SKIPS = re.compile(r"pytest\.skip\b|\bskipif\b|\bimportorskip\b|\bskipTest\b|mark\.skip\b")
USES = re.compile(r"\b(?:lacking|requires|need_module)\(\s*\"([^\"]*)\"")
SOURCES = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
TESTS = """
import pytest
from tests.support.requirements import lacking, need_module, requires

pytestmark = requires("linux", True, "there")

def test_there():
    pass

@requires("curl", False, "no curl")
def test_marked():
    raise AssertionError

def test_lacking():
    lacking("native", "no compiler")

def test_module():
    need_module("plot", "a_module_that_is_not_there")

@pytest.fixture
def database():
    lacking("postgresql", "none runs")

def test_fixture(database):
    raise AssertionError
"""


def outcome(tmp_path: Path, switch: str) -> tuple[int, str]:
    """Run the tests above with a switch; return the exit code and what is said."""
    (tmp_path / "test_needs.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-n0", "-rsfE",
         "--rootdir", str(tmp_path), "-p", "no:cacheprovider", str(tmp_path / "test_needs.py")],
        cwd=ROOT, env={**os.environ, SWITCH: switch}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_needs_that_are_not_required_skip(tmp_path: Path) -> None:
    code, said = outcome(tmp_path, "")
    assert code == 0, said
    assert "1 passed, 4 skipped" in said
    assert "no compiler (needs native" in said


@pytest.mark.parametrize(
    ("switch", "failed"),
    [
        ("native", ["test_lacking"]),
        ("curl", ["test_marked"]),
        ("linux, plot ,postgresql", ["test_module", "test_fixture"]),
    ],
)
def test_need_that_is_required_fails_with_its_reason(
    tmp_path: Path, switch: str, failed: list[str]
) -> None:
    code, said = outcome(tmp_path, switch)
    assert code == 1, said
    assert sorted(re.findall(r"^(?:FAILED|ERROR) \S*::(\w+)", said, re.MULTILINE)) == sorted(failed)
    assert said.count("and the test would skip") >= len(failed)


def test_switch_with_an_unknown_name_is_refused(tmp_path: Path) -> None:
    code, said = outcome(tmp_path, "native,rust,nativ")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert f"{SWITCH} names nativ; there are bf16, " in said


def test_skips_are_made_by_the_helper_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        if path != HELPER
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if SKIPS.search(line)
    ]
    assert not found, "use lacking, requires or need_module of tests/support/requirements.py"


def test_needs_are_those_that_tests_have() -> None:
    used = {name for path in SOURCES for name in USES.findall(path.read_text(encoding="utf-8"))}
    assert used == set(NEEDS)


def test_switch_of_ci_names_all_but_what_its_machine_lacks() -> None:
    line = re.search(rf"{SWITCH}=(\S*)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert line is not None
    named = set(line[1].split(","))
    assert named <= set(NEEDS)
    assert set(NEEDS) - named == {
        "chromium",
        "clang",
        "claude-code",
        "flashinfer",
        "gpu",
        "plot",
        "quiet",
        "rustfmt",
        "serde",
        "user",
        "zig",
    }
