"""The synchronous client: the asynchronous one's methods, over a real server."""

import gc
import inspect
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from symphony import AsyncClient, Client, ClientError, ServerError
from symphony.client import sync_client as made

from tests.e2e import programs as guests
from tests.support.server.server import RunningServer
from tools.sync_client import CLASSES, PAGE, sync_client


@pytest.fixture
def client(server: RunningServer) -> Client:
    return Client(server.url, server.key)


def test_module_is_what_the_asynchronous_client_gives() -> None:
    assert PAGE.read_text() == sync_client(), "python -m tools.sync_client"


def public(kind: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(value)
    }


@pytest.mark.parametrize("module", CLASSES)
def test_both_clients_have_the_same_methods_and_parameters(module: str) -> None:
    name = CLASSES[module][0]
    theirs = public(getattr(__import__(f"symphony.client.{module}", fromlist=[name]), name))
    ours = public(getattr(made, name.removeprefix("Async")))
    own = {"close"} if name == "AsyncClient" else set()  # `async with` closes the other
    assert set(ours) - own == set(theirs)
    for method, function in theirs.items():
        wanted = [
            (each.name, each.kind, each.default)
            for each in inspect.signature(function).parameters.values()
        ]
        found = inspect.signature(ours[method]).parameters.values()
        assert [(each.name, each.kind, each.default) for each in found] == wanted, method
    parameters = inspect.signature(AsyncClient).parameters
    assert [*inspect.signature(Client).parameters] == [*parameters]


def test_programs_and_runs(client: Client) -> None:
    with client:
        program = client.programs.upload(guests.HELLO_WASM, "hello")
        assert client.run("hello")["output"] == "hello"
        run = client.start("hello", trace=True)
        assert client.runs.wait(run)["status"] == "exited"
        assert client.runs.trace(run)["traceEvents"]
        events = [*client.stream(program["id"])]
        assert [event.message() for event in events if event.kind == "message"] == [b"hello"]
        assert run in [each["id"] for each in client.runs.list(program="hello")]
        older = client.programs.upload(guests.TRAP_WASM, "hello")["id"]
        assert [each["id"] for each in client.programs.versions("hello")] == [older, program["id"]]
        assert client.programs.rollback("hello")["id"] == program["id"]
        with pytest.raises(ServerError) as refused:
            client.programs.get("none")
        assert (refused.value.status, refused.value.kind) == (404, "not-found")


def test_stream_that_is_left_ends_and_the_client_serves_on(client: Client) -> None:
    with client:
        client.programs.upload(guests.CHATTY_WASM, "chatty")
        for event in client.stream("chatty"):
            if event.kind == "message":
                break
        assert client.ready()[0]


def test_messages_go_both_ways(client: Client) -> None:
    with client:
        client.programs.upload(guests.PARROT_WASM, "parrot")
        run = client.start("parrot")
        with client.runs.connect(run) as socket:
            socket.send("one")
            assert socket.receive() == b"one"
            client.runs.send(run, "two", close=True)
            assert [*socket.messages()] == [b"two"]
            assert socket.status == "exited"


def test_kv_files_are_files(client: Client) -> None:
    with client:
        client.programs.upload(guests.SAVE_WASM, "save")
        client.run("save")
        assert "notes/first" in [file["path"] for file in client.kv.list("notes/")]
        with client.kv.download("notes/first") as file:
            head = file.read(8)
            data = head + file.read()
        client.kv.upload("sync/one", data)
        assert client.kv.upload("sync/one", io.BytesIO(data))["len"] == 3
        assert client.kv.stat("sync/one")["durable"]
        with client.kv.download("sync/one") as file:
            assert file.read(8)
        client.kv.remove("sync/one")
        assert [*client.kv.list("sync/")] == []


def test_operators_have_tenants_keys_usage_and_audit(server: RunningServer) -> None:
    with Client(server.url, server.admin_key) as client:
        client.admin.create_tenant("sync", weight=2.0)
        key = client.admin.create_key("sync", name="first")
        assert [each["id"] for each in client.admin.keys("sync")] == [key["id"]]
        with Client(server.url, key["key"]) as tenant:
            assert [*tenant.programs.list()] == []
        client.admin.revoke_key("sync", key["id"])
        assert isinstance([*client.admin.usage()], list)
        assert (
            "create" in next(client.admin.audit({"tenant": "sync"}), {"action": "create"})["action"]
        )
        client.admin.delete_tenant("sync", everything=True)


async def test_client_works_where_an_event_loop_runs(client: Client) -> None:
    with client:
        assert client.ready()[0]


def test_threads_share_a_client(client: Client) -> None:
    with client, ThreadPoolExecutor(8) as pool:
        client.programs.upload(guests.HELLO_WASM, "hello")
        outputs = pool.map(lambda _: client.run("hello")["output"], range(32))
        assert [*outputs] == ["hello"] * 32


def test_client_that_is_closed_or_dropped_leaves_no_thread(client: Client) -> None:
    other = Client(client.url, "key")
    for each in (client, other):
        assert each.ready()[0]
    client.close()
    with pytest.raises(ClientError, match="closed"):
        client.ready()
    del other, each
    gc.collect()
    assert "symphony-client" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Handle SIGINT as Python does by itself: workers of the test runner ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupted_stream_ends_and_the_client_serves_on(
    client: Client, interruptible: None
) -> None:
    with client:
        client.programs.upload(guests.HANG_WASM, "hang")
        run = client.start("hang")
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            list(client.runs.events(run))
        assert client.runs.cancel(run)["status"] == "killed"


FORKS = """
import os, sys
from symphony import Client
client = Client(sys.argv[1], sys.argv[2])
assert client.run("hello")["output"] == "hello"
stream = client.stream("hello")
next(stream)
child = os.fork()
assert client.run("hello")["output"] == "hello"
if not child:
    client.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert [event.kind for event in stream][-1] == "status"
print("done")
"""


def test_client_serves_parent_and_child_of_a_fork(server: RunningServer, client: Client) -> None:
    with client:
        client.programs.upload(guests.HELLO_WASM, "hello")
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, server.url, server.key],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr == ""
