"""The pages do as they say: their commands are run as they stand."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import requires
from tests.support.server.server import REPOSITORY, RunningServer

README = (REPOSITORY / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
PROGRAM = next(text for language, text in BLOCKS if language == "rust")
COMMANDS = [text for language, text in BLOCKS if language == ""]


def block(word: str) -> str:
    """Return the one block of commands with `word` in it."""
    found: list[str] = [text for text in COMMANDS if word in text]
    assert len(found) == 1, word
    return found[0]


def start() -> str:
    """Return the commands that make the project, in this clone."""
    return block("symphony new").replace("/path/to/this/clone", str(REPOSITORY))


def path() -> str:
    """Return the one that makes `symphony` known."""
    return start().splitlines()[0]


def run(script: str, server: RunningServer, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder, env=server.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def hello(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's program in the page's project, built."""
    folder = tmp_path_factory.mktemp("newcomer")
    run(start(), server, folder)
    (folder / "hello/src/lib.rs").write_text(PROGRAM)
    run(f"{path()}\nsymphony build", server, folder / "hello")
    return folder / "hello"


def test_page_has_its_two_commands() -> None:
    targets = re.findall(r"^make (\w+)", "\n".join(COMMANDS), re.MULTILINE)
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)


def test_page_first_lip_has_twenty_lines() -> None:
    assert len(PROGRAM.splitlines()) <= 25


def test_page_first_lip_runs(server: RunningServer, hello: Path) -> None:
    commands = block("symphony serve").splitlines()
    assert commands[0].startswith("symphony serve &")  # it serves already
    said = run("\n".join([path(), *commands[2:]]), server, hello)
    assert all(f"def {name}(" in said for name in ("read", "write", "main"))


@requires("curl", shutil.which("curl") is not None, "curl is not installed here")
def test_page_first_lip_runs_over_plain_http(server: RunningServer, hello: Path) -> None:
    commands = block("curl ").replace("http://127.0.0.1:8700", server.url)
    commands = re.sub(r"\$\(cat [^)]*\)", f"$(cat '{server.data_dir}/default.key')", commands)
    said = run(commands, server, hello)
    assert '"id":' in said.replace(" ", "")
    assert "event: message" in said
    assert '"exited"' in said


@pytest.mark.parametrize(
    "page",
    [
        "guest_sdk/assemblyscript/README.md",
        "guest_sdk/rust/README.md",
        "examples/beam_search/README.md",
        "examples/best_of_n/README.md",
        "examples/chat/README.md",
        "examples/completion/README.md",
        "examples/graph_of_thoughts/README.md",
        "examples/parallel_suffixes/README.md",
        "examples/swarm/README.md",
    ],
)
def test_page_commands_work(server: RunningServer, tmp_path: Path, page: str) -> None:
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    symphony = f"{shlex.quote(sys.executable)} -m symphony_runtime.cli "
    blocks = re.findall(r"```sh\n(.*?)```", (REPOSITORY / page).read_text(), re.DOTALL)
    assert blocks
    for commands in blocks:
        said = run(commands.replace("symphony ", symphony), server, tmp_path)
        assert said.rpartition(".wasm\n")[2].strip(), said  # after what `build` prints
