"""Which server a command talks to, and which key it shows: real servers of one user."""

import json
import os
import signal
from pathlib import Path

from tests.e2e import programs as guests
from tests.support.server.server import RunningServer, running_server, symphony


def environment_of(state: Path) -> dict[str, str]:
    """Return the environment of a user who has named no server."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SYMPHONY_")}
    return {**kept, "XDG_STATE_HOME": str(state)}


def test_commands_say_which_of_the_servers_they_guessed(tmp_path: Path) -> None:
    environment = environment_of(tmp_path)
    with running_server(tmp_path / "first", environment=environment) as first:
        alone = symphony("runs", env=environment)
        file = tmp_path / "symphony" / "servers" / f"{first.process.pid}.json"
        assert (alone.returncode, alone.stderr) == (
            0, f"symphony: server {first.url} (from {file})\n",
        )  # fmt: skip
        with running_server(tmp_path / "second", environment=environment) as second:
            _check_two(first, second, environment)
            second.process.send_signal(signal.SIGTERM)
            second.process.wait()
        again = symphony("runs", env=environment)
        assert again.stderr == alone.stderr
        assert [each.name for each in file.parent.iterdir()] == [file.name]
    assert symphony("servers", env=environment).stdout.split() == ["URL", "PID", "STARTED", "DATA"]
    assert "no server is known" in symphony("runs", env=environment).stderr


def _check_two(first: RunningServer, second: RunningServer, environment: dict[str, str]) -> None:
    newest = symphony("runs", env=environment)
    assert newest.returncode == 0
    assert f"symphony: server {second.url} (the newest of 2 that run here: " in newest.stderr
    listed = json.loads(symphony("servers", "--json", env=environment).stdout)
    assert [each["url"] for each in listed] == [second.url, first.url]
    assert [each["pid"] for each in listed] == [second.process.pid, first.process.pid]
    assert listed[1]["data_dir"] == str(first.data_dir)
    rows = symphony("servers", env=environment).stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["URL", second.url, first.url]
    # Either one's key is found by its address, and nothing is guessed.
    for server in (first, second):
        named = symphony("runs", "--server", server.url, env=environment)
        assert (named.returncode, named.stderr) == (0, "")
        tenants = symphony("admin", "tenants", "list", "--server", server.url, env=environment)
        assert (tenants.returncode, tenants.stderr) == (0, "")


def test_killed_server_is_listed_no_longer(tmp_path: Path) -> None:
    environment = environment_of(tmp_path)
    with running_server(tmp_path / "data", environment=environment) as server:
        server.process.kill()
        server.process.wait()
        assert json.loads(symphony("servers", "--json", env=environment).stdout) == []
        assert list((tmp_path / "symphony" / "servers").iterdir()) == []


def test_command_without_a_key_says_where_it_looked(server: RunningServer, tmp_path: Path) -> None:
    environment = environment_of(tmp_path)  # whose user has started no server
    refused = symphony("runs", "--server", server.url, env=environment)
    assert refused.returncode == 1
    assert "no key was found in --key, SYMPHONY_KEY, default.key of a data dir" in refused.stderr
    operator = symphony("admin", "tenants", "list", "--server", server.url, env=environment)
    assert "no key was found in --key, SYMPHONY_ADMIN_KEY, admin.key of a" in operator.stderr
    own = {**environment, "XDG_STATE_HOME": server.environment["XDG_STATE_HOME"]}
    key_file = server.data_dir / "admin.key"
    hidden = key_file.rename(key_file.with_suffix(".hidden"))
    try:
        unread = symphony("admin", "tenants", "list", env=own)
    finally:
        hidden.rename(key_file)
    assert f"no key was found in --key, SYMPHONY_ADMIN_KEY, {key_file}; the server" in unread.stderr


def test_wrong_key_is_not_called_missing(server: RunningServer) -> None:
    refused = server.symphony("runs", environment={"SYMPHONY_KEY": "sym_no_key"})
    assert "this key is not valid" in refused.stderr
    assert "no key was found" not in refused.stderr


def test_run_over_the_rate_says_what_it_waits_for(tmp_path: Path) -> None:
    config = tmp_path / "symphony.toml"
    config.write_text("[limits]\ntokens_per_minute = 60\n")
    decode = tmp_path / "decode.wasm"
    decode.write_bytes(guests.DECODE_WASM)
    with running_server(tmp_path / "data", "--config", str(config)) as server:
        run = server.symphony("run", str(decode), "--input", "F", encoding="latin-1")  # 70 tokens
        assert run.returncode == 0
        words = "it waits for its tenant's limit tokens_per_minute: 60 tokens a minute are computed"
        (line,) = run.stderr.splitlines()
        assert line.startswith("symphony: run_")
        assert line.endswith(f": {words}")
        started = server.symphony("run", str(decode), "--input", "d", "--detach").stdout.strip()
        follow = server.symphony("logs", started)
        deadline = 30
        while words not in follow.stdout and deadline:
            deadline -= 1
            follow = server.symphony("logs", started)
        assert follow.stdout == f"warning: {words}\n"
        (listed,) = json.loads(server.symphony("runs", "--live", "--json").stdout)
        assert (listed["id"], listed["waits_for"]) == (started, "tokens_per_minute")
        rows = server.symphony("runs").stdout.splitlines()
        assert rows[1].endswith("  waits for tokens_per_minute")
        top = json.loads(server.symphony("top", "--json").stdout)
        assert top["runs"][0]["waits_for"] == "tokens_per_minute"
        admin = server.symphony("top", "--json", environment={"SYMPHONY_KEY": server.admin_key})
        assert json.loads(admin.stdout)["tenants"][0]["runs_held_up"] == 1
        assert server.symphony("cancel", started).returncode == 0
