"""Coding agents, as their makers ship them, read and edit a file by a model that is a program.

The program does what the script in the user's message says, and the tiny model writes each call
under a constraint. So this shows that the agents and the server understand each other over a whole
session. It does not show that a small model uses tools well.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway.scripted import script, upload_scripted
from tests.support.requirements import requires
from tests.support.server.server import REPOSITORY, RunningServer

MODULES = REPOSITORY / "build" / "clients" / "node_modules"
CODEX = MODULES / ".bin" / "codex"
CLAUDE = MODULES / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"
SECONDS_MAX = 120
ABSENT = "npm has not installed it into build/clients"
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


def run_agent(command: list[str], folder: Path, **environment: str) -> Any:
    """Let an agent work in a folder; return how it ended. It reaches no other machine."""
    nowhere = {f"{scheme}_PROXY": "http://127.0.0.1:9" for scheme in ("HTTP", "HTTPS", "ALL")}
    kept = {"PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1", **nowhere}
    return subprocess.run(
        command, cwd=folder, env={**kept, **environment}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home for an agent."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the file that an agent edits."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("one\n")
    return tmp_path / "work"


async def statuses(server: RunningServer, model: str) -> list[str]:
    """Return how the model's runs have ended."""
    await server.wait_until_idle()
    async with server.client() as client:
        return [run["status"] async for run in client.runs.list() if run["program_name"] == model]


@requires("codex", any(MODULES.glob("@openai/codex-*")), ABSENT)
async def test_codex_reads_and_edits_a_file_by_a_scripted_model(
    server: RunningServer, home: Path, folder: Path
) -> None:
    steps = [
        command("cat a.txt"),
        {"expect": "one", **command(PATCH)},
        {"expect": "a.txt", **command("printf three >> a.txt; cat a.txt")},
        {"expect": "two\nthree", "say": "The file is edited."},
    ]
    async with server.client() as client:
        model = await upload_scripted(client, "codex-script")
    (home / "config.toml").write_text(CONFIG.format(model=model, url=server.url))
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    ended = run_agent(
        [str(CODEX), "exec", *options, f"Edit a.txt.\n{script(*steps)}"], folder,
        HOME=str(home), CODEX_HOME=str(home), SYMPHONY_KEY=server.key,
    )  # fmt: skip
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

    assert await statuses(server, model) == ["exited"] * len(steps)
    written = events[-1]["usage"]["output_tokens"]
    assert written > len(steps) * 5, "the model writes the calls token by token"


@requires("claude-code", any(MODULES.glob("@anthropic-ai/claude-code-*")), ABSENT)
async def test_claude_code_reads_and_edits_a_file_by_a_scripted_model(
    server: RunningServer, home: Path, folder: Path
) -> None:
    file = folder / "a.txt"
    edit = {"file_path": str(file), "old_string": "one", "new_string": "two"}
    steps: list[dict[str, Any]] = [
        {"call": "Read", "arguments": {"file_path": str(file)}},
        {"expect": "one", "call": "Edit", "arguments": edit},
        {"expect": "updated", "call": "Read", "arguments": {"file_path": str(file), "limit": 1}},
        {"expect": "two", "say": "The file is edited."},
    ]
    async with server.client() as client:
        model = await upload_scripted(client, "claude-script")
    options = ["--output-format", "stream-json", "--verbose", "--allowedTools", "Read,Edit"]
    ended = run_agent(
        ["node", str(CLAUDE), "-p", *options, "--", f"Edit a.txt.\n{script(*steps)}"], folder,
        HOME=str(home), ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY=server.key,
        ANTHROPIC_MODEL=model, ANTHROPIC_SMALL_FAST_MODEL=model, DISABLE_TELEMETRY="1",
        DISABLE_AUTOUPDATER="1", DISABLE_ERROR_REPORTING="1",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert file.read_text() == "two\n"

    events = [json.loads(line) for line in ended.stdout.splitlines()]
    told = [event for event in events if event["type"] in ("assistant", "user")]
    blocks = [block for event in told for block in event["message"]["content"]]
    called = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    assert [name for name, _ in called] == ["Read", "Edit", "Read"]
    assert edit.items() <= called[1][1].items()
    results = [block["content"] for block in blocks if block["type"] == "tool_result"]
    assert "one" in results[0]
    assert "two" in results[2]
    assert (events[-1]["type"], events[-1]["result"]) == ("result", "The file is edited.")
    assert await statuses(server, model) == ["exited"] * len(steps)
    written = events[-1]["usage"]["output_tokens"]
    assert written > len(steps) * 5, "the model writes the calls token by token"
