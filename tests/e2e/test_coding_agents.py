"""A coding agent, as its maker ships it, reads and edits a file by a model that is a program.

The program does what the script in the user's message says, and the tiny model writes each call
under a constraint. So this shows that the agent and the server understand each other over a whole
session. It does not show that a small model uses tools well.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway.scripted import script, upload_scripted
from tests.support.requirements import lacking
from tests.support.server.server import REPOSITORY, RunningServer

CODEX = REPOSITORY / "build" / "clients" / "node_modules" / ".bin" / "codex"
MODEL = "coding-script"
SECONDS_MAX = 120
CONFIG = """
model = "{model}"
model_provider = "symphony"
check_for_update_on_startup = false

[model_providers.symphony]
name = "Symphony"
base_url = "{url}/v1"
env_key = "SYMPHONY_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[feedback]
enabled = false
"""
PATCH = """apply_patch <<'EOF'
*** Begin Patch
*** Update File: a.txt
@@
-one
+two
*** End Patch
EOF"""


def command(cmd: str) -> dict[str, Any]:
    return {"call": "exec_command", "arguments": {"cmd": cmd}}


@pytest.fixture(scope="module")
def codex() -> str:
    """The command, of a package that has a part for each platform."""
    if not CODEX.exists():
        lacking("codex", "`make build/clients/installed` installs it")
    told = subprocess.run([CODEX, "--version"], capture_output=True, timeout=60, check=False)
    if told.returncode:
        lacking("codex", told.stderr.decode(errors="replace")[-300:])
    return str(CODEX)


def run_codex(codex: str, server: RunningServer, folder: Path, prompt: str) -> Any:
    """Let Codex work in a folder; return how it ended. It reaches no other server."""
    home = folder.parent / "home"
    (home / "codex").mkdir(parents=True)
    (home / "codex" / "config.toml").write_text(CONFIG.format(model=MODEL, url=server.url))
    nowhere = {f"{scheme}_PROXY": "http://127.0.0.1:9" for scheme in ("HTTP", "HTTPS", "ALL")}
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CODEX_HOME": str(home / "codex"),
        "SYMPHONY_KEY": server.key,
        "NO_PROXY": "127.0.0.1",
        **nowhere,
    }
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    return subprocess.run(
        [codex, "exec", *options, prompt],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=SECONDS_MAX, check=False,
    )  # fmt: skip


async def test_codex_reads_and_edits_a_file_by_a_scripted_model(
    server: RunningServer, codex: str, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    steps = [
        command("cat a.txt"),
        {"expect": "one", **command(PATCH)},
        {"expect": "a.txt", **command("printf three >> a.txt; cat a.txt")},
        {"expect": "two\nthree", "say": "The file is edited."},
    ]
    async with server.client() as client:
        await upload_scripted(client, MODEL)
    ended = run_codex(codex, server, folder, f"Edit a.txt.\n{script(*steps)}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (folder / "a.txt").read_text() == "two\nthree"

    events = [json.loads(line) for line in ended.stdout.splitlines()]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    did = [item for item in items if item["type"] != "error"]  # it does not know the model's name
    assert [item["type"] for item in did] == [
        "command_execution", "file_change", "command_execution", "agent_message",
    ]  # fmt: skip
    read, changed, read_again, said = did
    assert (read["aggregated_output"], read["exit_code"]) == ("one\n", 0)
    assert [Path(change["path"]).name for change in changed["changes"]] == ["a.txt"]
    assert (read_again["aggregated_output"], read_again["exit_code"]) == ("two\nthree", 0)
    assert said["text"] == "The file is edited."
    assert events[-1]["type"] == "turn.completed"

    await server.wait_until_idle()
    async with server.client() as client:
        runs = [run async for run in client.runs() if run["program_name"] == MODEL]
    assert [run["status"] for run in runs] == ["exited"] * len(steps)
    written = events[-1]["usage"]["output_tokens"]
    assert written > len(steps) * 5, "the model writes the calls token by token"
