import json
import os
from pathlib import Path

import pytest
from symphony.attached.errors import AttachError
from symphony.attached.place import find_server


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder of servers, with no server named otherwise."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("SYMPHONY_SERVER", raising=False)
    monkeypatch.delenv("SYMPHONY_KEY", raising=False)
    servers = tmp_path / "symphony" / "servers"
    servers.mkdir(parents=True)
    return servers


def announce(servers: Path, port: int, pid: int, key: str) -> None:
    data_dir = servers.parent / str(port)
    data_dir.mkdir()
    key_file = data_dir / "default.key"
    key_file.write_text(f"{key}\n")
    place = {"url": f"http://127.0.0.1:{port}", "key_file": str(key_file), "pid": pid}
    for file in (servers / f"{port}.json", data_dir / "server.json"):
        file.write_text(json.dumps(place))


def test_arguments_and_variables_name_a_server(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_server("http://h:1/", "k") == ("http://h:1", "k")
    monkeypatch.setenv("SYMPHONY_SERVER", "http://h:2")
    monkeypatch.setenv("SYMPHONY_KEY", "k2")
    assert find_server() == ("http://h:2", "k2")
    assert find_server("http://h:1", "k") == ("http://h:1", "k")


def test_key_of_the_environment_goes_to_its_server_only(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_KEY", "k2")
    announce(state, 8700, os.getpid(), "its key")
    for own in ("", "http://h:2"):
        monkeypatch.setenv("SYMPHONY_SERVER", own)
        with pytest.raises(AttachError, match="no key is known for http://h:1: give `key=`"):
            find_server("http://h:1")
        assert find_server("http://127.0.0.1:8700") == ("http://127.0.0.1:8700", "its key")
    assert find_server("http://h:2/") == ("http://h:2", "k2")
    monkeypatch.setenv("SYMPHONY_SERVER", "")
    assert find_server() == ("http://127.0.0.1:8700", "k2")


def test_live_server_of_the_user_is_found(state: Path) -> None:
    (state / "broken.json").write_text("{")
    announce(state, 8701, 1 << 30, "of a dead one")
    announce(state, 8700, os.getpid(), "its key")
    assert find_server() == ("http://127.0.0.1:8700", "its key")
    assert find_server("http://127.0.0.1:8700") == ("http://127.0.0.1:8700", "its key")


def test_no_server_and_no_key_are_told(state: Path) -> None:
    with pytest.raises(AttachError, match="start one with `symphony serve`"):
        find_server()
    with pytest.raises(AttachError, match="no key is known for http://h:1"):
        find_server("http://h:1")
