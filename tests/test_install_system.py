"""What `make install` says to a user who is not root and lacks packages of the system."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("bash", "dirname", "xargs")
PYTHON = str(Path(sys.executable).resolve())


def run(folder: Path, *parts: str, python: str = PYTHON, **scripts: str) -> tuple[int, str]:
    """Run the script with these commands only, as a user who is not root."""
    for name in TOOLS:
        (folder / name).symlink_to(str(shutil.which(name)))
    for name, words in {"id": "echo 1000", "echo": 'printf "%s\n" "$*"', **scripts}.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/sh\n{words}\n")
        (folder / name.replace("_", "-")).chmod(0o755)
    done = subprocess.run(
        [str(folder / "bash"), str(ROOT / "tools" / "install_system.sh"), python, *parts],
        env={"PATH": str(folder), "CC": "none", "CXX": "none"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_missing_packages_are_all_named_at_once(tmp_path: Path) -> None:
    code, words = run(tmp_path, "server", "guests", apt_get="echo called >&2")
    assert code == 1
    assert "called" not in words, "only root installs"
    needed, command, node = words.splitlines()[:3]
    assert needed.startswith("Symphony needs, by the names of Debian's packages: gcc libc6-dev")
    assert command.startswith("Have them installed (as root: apt-get install gcc libc6-dev g++")
    assert "nodejs npm" in command
    assert "18 or newer" in node


@pytest.mark.parametrize(("node", "code"), [("exit 1", 1), ("exit 0", 0)])
def test_guests_need_a_node_that_is_new_enough(tmp_path: Path, node: str, code: int) -> None:
    # The script's own question to node answers whether it is.
    found, words = run(tmp_path, "guests", npm="exit 0", node=node, rustup="exit 0")
    assert found == code
    assert ("nodejs npm" in words) == bool(code)


def test_python_that_is_too_old_is_refused_before_packages_are_asked_for(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 3.9\n")
    old.chmod(0o755)
    code, words = run(tmp_path, "server", python=str(old))
    assert (code, words) == (
        1, f"Symphony needs Python 3.11 to 3.13, {old} is 3.9. Set PYTHON=...\n",
    )  # fmt: skip
