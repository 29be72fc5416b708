"""Which server and which key a client takes if its user names none."""

import os
from pathlib import Path

import pytest
from symphony import AsyncClient, Client, ClientError
from symphony.client.places import ServerPlace, choose
from symphony_runtime.config.announcement import announce

VARIABLES = ("SYMPHONY_SERVER", "SYMPHONY_KEY", "SYMPHONY_ADMIN_KEY")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable is set, and no server of this user runs."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def announced(folder: Path, url: str) -> None:
    folder.mkdir()
    for name in ("default", "admin"):
        (folder / f"{name}.key").write_text(f"{name}-of-{folder.name}\n")
    announce(ServerPlace(url, folder / "default.key", os.getpid()))


def test_client_without_any_server_says_what_to_do() -> None:
    for kind in (AsyncClient, Client):
        with pytest.raises(ClientError, match="start one with `symphony serve`, or name one"):
            kind()
        with pytest.raises(ClientError, match="localhost is not a server's address"):
            kind("localhost")


def test_server_that_runs_here_is_found_with_its_keys(tmp_path: Path) -> None:
    announced(tmp_path / "here", "http://127.0.0.1:8700")
    found = choose(None, None)
    assert (found.url, found.key) == ("http://127.0.0.1:8700", "default-of-here")
    assert choose(None, None, operator=True).key == "admin-of-here"
    assert choose("http://127.0.0.1:8700/", None).key == "default-of-here"
    assert AsyncClient().url == "http://127.0.0.1:8700"


def test_key_of_a_server_here_goes_to_no_other(tmp_path: Path) -> None:
    announced(tmp_path / "here", "http://127.0.0.1:8700")
    assert choose("http://example.com", None).key is None


def test_arguments_win_over_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    announced(tmp_path / "here", "http://127.0.0.1:8700")
    for name in VARIABLES:
        monkeypatch.setenv(name, f"http://{name.lower().replace('_', '-')}")
    assert choose(None, None).url == "http://symphony-server"
    assert choose(None, None).key == "http://symphony-key"
    assert choose(None, None, operator=True).key == "http://symphony-admin-key"
    named = choose("http://named", "key")
    assert (named.url, named.key) == ("http://named", "key")


def test_projects_address_gets_no_key_of_another_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    announced(tmp_path / "here", "http://127.0.0.1:8700")
    monkeypatch.setenv("SYMPHONY_SERVER", "https://mine.example")
    monkeypatch.setenv("SYMPHONY_KEY", "secret")

    def key_for(project: str, url: str | None = None, key: str | None = None) -> str | None:
        return choose(url, key, project=project).key

    assert choose(None, None, project="http://evil.example").url == "http://evil.example"
    assert key_for("http://evil.example") is None
    assert key_for("https://mine.example/") == "secret"
    assert key_for("http://127.0.0.1:8700") == "default-of-here"
    assert key_for("http://evil.example", key="given") == "given"
    assert key_for("http://evil.example", url="https://named.example") == "secret"
    monkeypatch.delenv("SYMPHONY_SERVER")
    assert key_for("http://evil.example") is None
