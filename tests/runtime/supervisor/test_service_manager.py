"""What a service manager is told, and that it learns of a server only when that serves."""

import socket
from pathlib import Path

import pytest
from symphony_runtime.supervisor.service_manager import notify

from tests.support.server.server import running_server


def listening(address: str) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(address)
    receiver.settimeout(20)
    return receiver


def test_server_is_ready_when_it_serves_and_says_that_it_stops(tmp_path: Path) -> None:
    with listening(str(tmp_path / "notify")) as receiver:
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with running_server(tmp_path / "data", environment=environment) as server:
            ready = receiver.recv(4096).decode().splitlines()
        assert ready[0] == "READY=1"
        assert server.url in ready[1]
        assert receiver.recv(4096).startswith(b"STOPPING=1")


def test_state_reaches_an_abstract_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = f"symphony-{tmp_path.name}"
    with listening("\0" + name) as receiver:
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        notify("READY=1")
        assert receiver.recv(100) == b"READY=1"


def test_server_without_a_manager_or_whose_manager_is_gone_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nowhere"))
    notify("READY=1")
