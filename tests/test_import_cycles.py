"""No file of ours imports one that imports it, and a circle is found where there is one."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "tools" / "import_cycles.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_import_cycles_of_this_repository_are_none() -> None:
    done = run()
    assert (done.stdout, done.returncode) == ("", 0)


CLOSING = {
    "at the top": "import package.first\n",
    "of a name": "from package.first import a\n",
    "of a module": "from package import first\n",
    "in a function": "def f():\n    from package.first import a\n",
    "for types": "if TYPE_CHECKING:\n    from package.first import a\n",
}


@pytest.mark.parametrize("closing", CLOSING.values(), ids=CLOSING.keys())
def test_import_cycles_with_a_closing_import_are_printed(tmp_path: Path, closing: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text("from package.second import b\na = 1\n")
    (package / "second.py").write_text("from package.third import c\nb = 1\n")
    (package / "third.py").write_text("c = 1\n")
    assert run(str(package)).returncode == 0
    (package / "third.py").write_text(closing)
    done = run(str(package))
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "3 modules import each other:",
        "    package.first -> package.second",
        "    package.second -> package.third",
        "    package.third -> package.first",
    ]
