"""`symphony dev`, `deploy` and `test` in folders of projects, and the C and Zig examples."""

import asyncio
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from symphony_runtime.cli.development.compilers import Compilers
from symphony_runtime.cli.development.languages import language_of
from symphony_runtime.cli.development.system_languages import zig_command
from symphony_runtime.cli.development.testing import build_tests, run_tests
from symphony_runtime.cli.project_settings import read_settings
from symphony_runtime.cli.projects import KINDS, LANGUAGES, find_rust_toolchain, new, run_compiler

from tests.support.examples import EXAMPLES, built
from tests.support.requirements import requires
from tests.support.server.server import (
    REPOSITORY,
    SYMPHONY,
    RunningServer,
    descendants,
    running_server,
    still_alive,
    wait_for_end,
)

SECONDS_MAX = 60
needs_clang = requires(
    "clang", all(map(shutil.which, ("clang", "wasm-ld"))), "no clang with wasm-ld is installed here"
)
needs_zig = requires("zig", zig_command() is not None, "neither zig nor ziglang is installed here")

SOURCE = """\
import { inputText, send } from "symphony-lip";

export function lip_main(): i32 {
  send("one " + inputText());
  return 0;
}
"""
TRAPS = SOURCE.replace("  return 0;", "  return [1][inputText().length];")


class Lines:
    """The lines that a process writes, awaited by what they contain."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._seen: list[str] = []
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, words: str) -> str:
        """Return the next line with these words."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            assert line is not None, f"no {words!r} in:\n{''.join(self._seen)}"
            self._seen.append(line)
            if words in line:
                return line


@contextmanager
def developing(
    folder: Path, environment: dict[str, str], *options: str
) -> Iterator[tuple["subprocess.Popen[str]", Lines]]:
    """`symphony dev --lines` in a folder, which ends at the latest with the block."""
    with subprocess.Popen(
        [*SYMPHONY, "dev", "--lines", str(folder), *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process, Lines(process)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(SECONDS_MAX)


def test_dev_runs_again_after_each_edit_and_shows_what_fails(
    server: RunningServer, tmp_path: Path
) -> None:
    project = new("looped", "assemblyscript", tmp_path)
    source = project / "assembly" / "index.ts"
    source.write_text(SOURCE)
    (project / "symphony.toml").write_text('[program]\ninput = "ü"\n')
    with developing(project, server.environment) as (process, lines):
        lines.wait_for("one ü")
        lines.wait_for("exited with 0")
        source.write_text(SOURCE.replace("one", "two"))
        assert "assembly/index.ts" in lines.wait_for("changed: ")
        lines.wait_for("two ü")
        source.write_text(SOURCE.replace("one", "three").replace("send(", "sent("))
        lines.wait_for("Cannot find name 'sent'")
        source.write_text(TRAPS)
        lines.wait_for("trapped: abort: Index out of range")
        lines.wait_for(">     5 |   return [1][inputText().length];")
        (project / "symphony.toml").write_text("[program]\ninput = 7\nlimits = { walls = 1 }\n")
        lines.wait_for("unknown limits: walls")
        below = descendants(process.pid)
        assert below, "the compiler stays for the next build"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 130
    assert not still_alive(below)
    assert server.symphony("programs", "show", "looped-dev").returncode == 1


EDITS = {
    "javascript": (
        "main.js",
        ('return "Give me a text to continue."', 'return "Two"'),
        ('return "Two"', "return nothing.at.all"),
        "at main (main.js:7)",
        ">     7 |   if (!given.prompt) return nothing.at.all;",
        ("return nothing", "return ]nothing"),
        "the server refuses it: main.js:7:29: ",
    ),
    "python": (
        "main.py",
        ('return "Give me a text to continue."', 'return "Two"'),
        ('return "Two"', "return nothing"),
        'File "main.py", line 10, in main',
        ">    10 |         return nothing",
        ("return nothing", "return ]nothing"),
        "the server refuses it: main.py:10:",
    ),
}


@pytest.mark.parametrize("lang", EDITS)
def test_source_is_run_again_after_each_edit_tested_and_deployed(
    lang: str, server: RunningServer, tmp_path: Path
) -> None:
    project_name = f"sourced-{lang}"
    made = server.symphony("new", project_name, "--lang", lang, "--directory", str(tmp_path))
    assert made.returncode == 0, made.stderr
    name, second, third, place, site, fourth, refused = EDITS[lang]
    project, source = tmp_path / project_name, tmp_path / project_name / name
    (project / "symphony.toml").write_text("[program]\ninput = {}\n")
    with developing(project, server.environment) as (process, lines):
        lines.wait_for("Give me a text to continue.")
        for edit, told in ((second, ["Two"]), (third, [place, site]), (fourth, [refused])):
            source.write_text(source.read_text().replace(*edit))
            assert name in lines.wait_for("changed: ")
            for words in told:
                lines.wait_for(words)
        source.write_text(
            source.read_text().replace("]nothing.at.all", "7").replace("]nothing", "7")
        )
        lines.wait_for("7")
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 130
    made = server.symphony("deploy", str(project))
    assert "a new program of" in made.stdout, made.stderr
    assert server.symphony("programs", "show", project_name).returncode == 0
    tested = server.symphony("test", str(project), "--server", server.url)
    assert tested.returncode == 1, tested.stdout + tested.stderr
    assert "1 passed, 1 failed" in tested.stdout


@needs_clang
def test_dev_ends_the_server_that_it_has_started(tmp_path: Path) -> None:
    project = shutil.copytree(EXAMPLES / "c_completion", tmp_path / "c_completion")
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with developing(project, environment, "--own-server") as (process, lines):
        lines.wait_for("which ends with this command")
        lines.wait_for("exited with 0")
        below = descendants(process.pid)
        assert len(below) >= 4, "supervisor, gateway, worker, kernel"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 130
    assert not still_alive(below)
    assert not list(project.glob(".symphony*"))


@needs_clang
def test_deploy_says_what_has_changed_and_rollback_undoes_it(
    server: RunningServer, tmp_path: Path
) -> None:
    project = shutil.copytree(EXAMPLES / "c_completion", tmp_path / "c_completion")
    settings = project / "symphony.toml"
    settings.write_text('[program]\nname = "deployed"\n')
    first = server.symphony("deploy", str(project))
    assert first.returncode == 0, first.stderr
    assert "a new program of" in first.stdout
    assert "may call: detokenize, exit, generate" in first.stdout.replace("claim, ", "")
    assert "nothing has changed" in server.symphony("deploy", str(project)).stdout
    source = project / "main.c"
    source.write_text(source.read_text().replace("return 0;", "return lip_recv() < 0;"))
    settings.write_text('[program]\nname = "deployed"\ndescription = "d"\n')
    told = json.loads(server.symphony("deploy", "--json", str(project)).stdout)
    assert told["changes"][1:] == ["may now call: recv", "description has changed"]
    listed = server.symphony("versions", cwd=project)
    assert len(listed.stdout.splitlines()) == 3, listed.stderr
    assert server.symphony("rollback", "deployed").returncode == 0
    shown = json.loads(server.symphony("programs", "show", "deployed").stdout)
    assert shown["id"] == told["before"]


FAILING = """\
import { expectEqual } from "symphony-lip/assembly/testing";

export function test_sum(): i32 {
  expectEqual(1 + 1, 2);
  return 0;
}

export function test_words(): i32 {
  expectEqual("a" + "b", "ba");
  return 0;
}
"""


def test_test_command_reports_each_test_and_where_one_failed(tmp_path: Path) -> None:
    project = new("tested", "assemblyscript", tmp_path)
    (project / "tests" / "program.ts").write_text(FAILING)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [*SYMPHONY, "test", str(project)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "ok   tests/program.ts::test_sum" in done.stdout
    assert 'expected "ba", got "ab"' in done.stdout
    assert '>     9 |   expectEqual("a" + "b", "ba");' in done.stdout
    assert "1 passed, 1 failed" in done.stdout


# --- Templates -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tooled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with the tools of the agent's template."""
    folder = tmp_path_factory.mktemp("tooled")
    template = REPOSITORY / "runtime/symphony_runtime/cli/templates/kinds/agent/shared"
    shutil.copy(template / "tools.py", folder)
    config = Path(shutil.copy(template / "server.toml", folder))
    path = f"{Path(SYMPHONY[0]).parent}{os.pathsep}{os.environ['PATH']}"
    options = ("--config", str(config))
    with running_server(folder, *options, executor="torch", environment={"PATH": path}) as running:
        yield running


@pytest.fixture(scope="module")
def workshop() -> Iterator[Path]:
    """A folder in the repository: projects there share the SDK's build."""
    folder = REPOSITORY / "build" / f"templates-{os.getpid()}"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def compilers() -> Iterator[Compilers]:
    with Compilers() as kept:
        yield kept


def declared(project: Path) -> set[str]:
    """The names of a project's tests, as anybody would look for them."""
    texts = [path.read_text() for path in (project / "tests").iterdir()]
    return set(re.findall(r"\btest_\w+(?=\()", "".join(texts)))


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_template_builds_runs_and_passes_its_tests(
    kind: str, lang: str, tooled: RunningServer, workshop: Path, compilers: Compilers
) -> None:
    project = new(f"{kind}-{lang}", lang, workshop, kind)
    written = "".join(path.read_text() for path in project.rglob("*") if path.is_file())
    assert not re.search(r"\{\{(name|sdk|packages)\}\}", written)
    language = language_of(project)
    path = language.build(project, lambda _: None, quick=True, run=compilers.run)
    settings = read_settings(project).program

    async def main() -> None:
        async with tooled.client() as client:
            program = await client.programs.upload(
                path.read_bytes(), settings.name, language.content_type
            )
            run = await client.start(program["id"], settings.input)
            for message in settings.messages:
                await client.runs.send(run, message)
            if settings.messages:
                await client.runs.send(run, b"", close=True)
            result = await wait_for_end(client, run)
            assert (result["status"], result["exit_code"]) == ("exited", 0), result
            assert result["messages"]
            if lang != "rust":
                built = build_tests(project, compilers.run)
                results = await run_tests(client, built, "", project)
                assert len(results) == len(declared(project))
                assert not [result for result in results if result.words]

    asyncio.run(main())
    if lang == "rust":
        toolchain = find_rust_toolchain()
        tested = run_compiler([toolchain.cargo, "test"], project, toolchain.environment)
        assert tested.code == 0, tested.stdout + tested.stderr


# --- C and Zig -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("c_completion", marks=needs_clang),
        pytest.param("zig_completion", marks=needs_zig),
    ],
)
def test_example_without_an_sdk_continues_as_the_rust_one_does(
    program: str, server: RunningServer, tmp_path: Path
) -> None:
    project = shutil.copytree(
        EXAMPLES / program, tmp_path / program, ignore=shutil.ignore_patterns("build")
    )
    wasm = language_of(project).build(project, lambda _: None, quick=False, run=run_compiler)

    async def main() -> None:
        async with server.client() as client:
            uploaded = await client.programs.upload(wasm.read_bytes(), program)
            told = await client.run(uploaded["id"], "def main(")
            empty = await client.run(uploaded["id"], "")
            rust = await client.programs.upload(built(EXAMPLES / "completion").read_bytes())
            asked = {"prompt": "def main(", "max_tokens": 64}
            expected = await client.run(rust["id"], asked)
        assert (told["status"], told["exit_code"]) == ("exited", 0), told
        assert told["output"] == expected["output"]
        assert (empty["status"], empty["exit_code"]) == ("exited", 2)

    asyncio.run(main())
