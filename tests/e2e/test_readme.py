"""The first page's program and commands, as a newcomer copies them."""

import json
import re
import subprocess
import sys
from pathlib import Path

from symphony_runtime.projects import build, new

from tests.support.server import RunningServer

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def test_the_first_lip_runs_as_the_page_says(server: RunningServer, tmp_path: Path) -> None:
    project = new("hello", "rust", tmp_path)
    (program,) = re.findall(r"```rust\n(.*?)```", README, re.DOTALL)
    (project / "src" / "lib.rs").write_text(program)
    assert build(project) == project / "build" / "hello.wasm"

    (command,) = re.findall(r"^symphony (run .*?)(?: +#.*)?$", README, re.MULTILINE)
    said = subprocess.run(
        [sys.executable, "-m", "symphony_runtime.cli", *command.split()],
        cwd=project, env=server.environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    starts = [line.partition("(")[0] for line in said.splitlines() if line.startswith("def ")]
    assert starts == ["def read", "def write", "def main"]

    curls = "\n".join(re.findall(r"^curl .*$", README, re.MULTILINE))
    done = subprocess.run(
        ["bash", "-euc", curls.replace("http://127.0.0.1:8700", server.url)],
        cwd=project, env=server.environment | {"KEY": server.key},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    uploaded, events = done.stdout.split("}", 1)
    assert json.loads(uploaded + "}")["name"] == "hello"
    assert events.count("event: message\n") == 3
    assert '"status":"exited","exit_code":0' in events
