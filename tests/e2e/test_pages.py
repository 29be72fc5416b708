"""The pages do as they say: their commands are run as they stand."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.checkpoints import SHAPES, make_checkpoint
from tests.support.examples import EXAMPLES, built
from tests.support.requirements import requires
from tests.support.server.server import REPOSITORY, RunningServer, running_server

README = REPOSITORY / "README.md"
STARTED = sorted((REPOSITORY / "docs" / "get-started").glob("*.md"))
PYTHON_CLIENT = REPOSITORY / "docs" / "guides" / "python-client.md"
LANGUAGE_FILES = {"rust": "src/lib.rs", "ts": "assembly/index.ts"}
DEFAULT_URL = "http://127.0.0.1:8700"
needs_curl = requires("curl", shutil.which("curl") is not None, "curl is not installed here")


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each block of code of a page."""
    return re.findall(r"```(\w*)\n(.*?)```", page.read_text(), re.DOTALL)


def block(page: Path, language: str, word: str = "") -> str:
    """Return the one block of a language with `word` in it."""
    found = [text for kind, text in blocks(page) if kind == language and word in text]
    assert len(found) == 1, (page.name, language, word)
    return found[0]


def here(text: str, server: RunningServer) -> str:
    """Return commands or code of a page with this server in place of the default one."""
    key = f"'{server.data_dir}/default.key'"
    text = text.replace(DEFAULT_URL, server.url).replace("~/.local/share/symphony/default.key", key)
    return text.replace('(Path.home() / ".local/share/symphony/default.key")', f"Path({key})")


def run(script: str, server: RunningServer, folder: Path) -> str:
    """Run commands in a folder, with `symphony` on the path and this server as the known one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{server.environment['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder, env=server.environment | {"PATH": path}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def ask_by_python(page: Path, server: RunningServer, folder: Path) -> str:
    """Run a page's Python program."""
    (folder / "client.py").write_text(here(block(page, "python"), server))
    return run("python client.py", server, folder)


@pytest.fixture(scope="module")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of a model's folder that is called as on the pages, with random weights."""
    folder = make_checkpoint(tmp_path_factory.mktemp("model") / "qwen", SHAPES["small"])
    data_dir = tmp_path_factory.mktemp("server")
    with running_server(data_dir, "--model", str(folder), executor="torch") as server:
        yield server


@pytest.fixture(scope="module")
def hello(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's program in the README's project, built."""
    folder = tmp_path_factory.mktemp("newcomer")
    *_, make_project = block(README, "", "symphony new").splitlines()
    run(make_project, server, folder)
    (folder / "hello/src/lib.rs").write_text(block(README, "rust"))
    _, build, _ = block(README, "", "symphony build").splitlines()
    run(build, server, folder / "hello")
    return folder / "hello"


@pytest.mark.parametrize("page", [README, *STARTED], ids=lambda page: page.name)
def test_page_names_targets_of_the_makefile(page: Path) -> None:
    targets = set(re.findall(r"(?:^|`)make ([a-z]\w*)", page.read_text(), re.MULTILINE))
    makefile = (REPOSITORY / "Makefile").read_text()
    assert {
        each for each in targets if not re.search(rf"^{each}:", makefile, re.MULTILINE)
    } == set()


def test_readme_is_read_in_a_minute() -> None:
    assert len(README.read_text().splitlines()) < 150
    assert len(block(README, "rust").splitlines()) <= 20


def test_readme_path_is_where_make_install_puts_the_command() -> None:
    assert 'export PATH="$PATH:$PWD/.venv/bin"' in block(README, "", "symphony new")
    assert (Path(sys.executable).parent / "symphony").is_file()


def test_readme_program_prints_what_the_page_shows(server: RunningServer, hello: Path) -> None:
    serve, _, run_it = block(README, "", "symphony build").splitlines()
    assert serve.startswith("symphony serve &")  # it serves already
    assert run(run_it, server, hello) == block(README, "text")


@needs_curl
def test_readme_real_model_answers(model_server: RunningServer, tmp_path: Path) -> None:
    fetch, serve, *ask = block(README, "", "hf download").splitlines()
    assert "--local-dir" in run("hf download --help", model_server, tmp_path)
    assert fetch.split("#")[0].split()[-1] == "qwen"
    assert serve == "symphony serve --model qwen &"
    said = run(here("\n".join(ask), model_server), model_server, tmp_path)
    assert json.loads(said)["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize(
    "name", ["README.md", "docs/get-started/openai.md", "docs/get-started/anthropic.md"]
)
def test_page_openai_client_gets_an_answer(
    server: RunningServer, tmp_path: Path, name: str
) -> None:
    assert ask_by_python(REPOSITORY / name, server, tmp_path).strip()


def test_page_program_is_an_openai_model(
    server: RunningServer, hello: Path, tmp_path: Path
) -> None:
    page = REPOSITORY / "docs" / "guides" / "openai-model.md"
    upload = block(page, "sh", "symphony upload").replace("build/NAME.wasm", "build/hello.wasm")
    run(upload, server, hello)
    assert "def read(" in ask_by_python(page, server, tmp_path)


@needs_curl
@pytest.mark.slow
@pytest.mark.parametrize("name", ["rust", "assemblyscript", "model"])
def test_started_page_is_followed_from_top_to_bottom(
    server: RunningServer, tmp_path: Path, name: str
) -> None:
    for needed in ("benchmarks", "examples"):
        (tmp_path / needed).symlink_to(REPOSITORY / needed)
    script = []
    for number, (language, text) in enumerate(blocks(REPOSITORY / f"docs/get-started/{name}.md")):
        if language in LANGUAGE_FILES:
            (tmp_path / f"shown{number}").write_text(text)
            script.append(f"cp {tmp_path}/shown{number} {LANGUAGE_FILES[language]}")
        elif language == "sh":
            script.append(here(text, server).replace("--shape 0.5b", "--shape small"))
    said = run("\n".join(script), server, tmp_path)
    if name != "model":
        assert len(said.splitlines()) > 6
    if name == "rust":
        assert "event: message" in said
        assert '"exited"' in said
    if name == "model":
        assert (tmp_path / "qwen" / "config.json").is_file()


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


def test_guide_of_the_python_client_runs_as_one_program(
    server: RunningServer, tmp_path: Path
) -> None:
    for name in ("completion", "chat"):
        shutil.copy(built(EXAMPLES / name), tmp_path)
    program = "\n".join(text for kind, text in blocks(PYTHON_CLIENT) if kind == "python")
    (tmp_path / "program.py").write_text(program)
    said = run("python -W error program.py", server, tmp_path).splitlines()
    assert said[0].startswith("exited ")
    assert any(line.endswith(" trace events") for line in said)
    assert said[-1] == "[0, 0, 0, 0]"
