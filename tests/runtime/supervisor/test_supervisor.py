"""Starting, watching and stopping; small scripts stand for roles that misbehave."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from symphony.client.places import (
    ServerPlace,
    live_servers,
    place_of,
    read_place,
    user_servers,
)
from symphony_kernel.protocol.role_processes import Started
from symphony_runtime.config.announcement import announce, withdraw, write_place
from symphony_runtime.config.serve import OptionsError, ServeOptions, read_options
from symphony_runtime.gateway.storage.changes import gateway_name
from symphony_runtime.supervisor.console import Console
from symphony_runtime.supervisor.role import (
    BEAT_SECONDS,
    CONFIGURATION_WRONG,
    SILENT_BEATS,
    Role,
    RoleSpec,
    SupervisorError,
)
from symphony_runtime.supervisor.supervisor import Supervisor, role_specs

from tests.support.server.server import alive, descendants, running_server, still_alive, symphony
from tests.support.waiting import wait_until

READY = 'print(json.dumps({"event": "ready", "pid": os.getpid()}), flush=True)'


class SmallRole(Role):
    """A role played by a script; `said` is what the console shows of it."""

    said: list[str]


def role(
    tmp_path: Path, script: str, stop_seconds: float = 0.5, hang_seconds: float = 0.0
) -> SmallRole:
    (tmp_path / "small_role.py").write_text(f"import json, os, signal, sys, time\n{script}\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    spec = RoleSpec(
        "small", "small_role", {"answer": 42}, environment, stop_seconds,
        beat_seconds=BEAT_SECONDS if hang_seconds else 0.0, hang_seconds=hang_seconds,
    )  # fmt: skip
    said: list[str] = []
    small = SmallRole(spec, Console(said.append, terminal=False))
    small.said = said
    return small


@contextlib.asynccontextmanager
async def kept(small: Role) -> AsyncIterator[None]:
    """Keep a role for the length of a block, which begins when it is ready; then stop it."""
    keeping = asyncio.create_task(small.keep())
    await asyncio.wait_for(small.ready.wait(), 20)
    yield
    await asyncio.wait_for(small.stop(), 20)
    await asyncio.wait_for(keeping, 20)


async def test_role_gets_its_configuration_and_stops_on_sigterm(tmp_path: Path) -> None:
    script = f"""
config = json.loads(sys.stdin.readline())
assert config == {{"answer": 42}}
assert os.getpgid(0) == os.getpid()  # a Ctrl-C is not for it
assert os.getsid(0) == os.getsid(os.getppid())  # but processors are shared out with its neighbours
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
{READY}
sys.stdin.read()
"""
    small = role(tmp_path, script)
    async with kept(small):
        assert alive(small.about["pid"])
    assert not alive(small.about["pid"])
    assert small.starts == 1


async def test_role_notices_reach_the_process_and_the_last_ones_the_next(tmp_path: Path) -> None:
    script = """
config = json.loads(sys.stdin.readline())
print(json.dumps({"event": "ready", "pid": os.getpid()}), flush=True)
for line in sys.stdin:
    heard = json.loads(line)
    print(json.dumps({"event": "progress", "what": heard["what"], "share": 0.5}), flush=True)
    if heard["what"] == "end":
        os._exit(3)
"""
    heard: list[str | None] = []
    small = role(tmp_path, script)
    small._on_progress = lambda name, event: heard.append(event["what"] if event else None)
    async with kept(small):
        for name, what in (("a", "old"), ("a", "new"), ("b", "end"), ("b", "last")):
            small.send_notice(name, {"what": what})
        await wait_until(lambda: "last" in heard)
    assert heard == [None, "old", "new", "end", None, "new", "last"]


def test_console_shows_progress_as_a_bar_or_as_few_lines() -> None:
    for terminal in (True, False):
        said: list[str] = []
        console = Console(said.append, terminal=terminal)
        for percent in range(101):
            console.progress("kernel", "loading the model", percent / 100)
        console.line("kernel", "ready")
        if terminal:
            assert any(words.endswith(f"[{'#' * 15}{' ' * 15}]  50 %") for words in said)
            assert all(words.startswith("\r\x1b[K") for words in said[:-1])
            assert said[-2:] == ["\r\x1b[K", "kernel: ready\n"]
        else:
            shares = [f"kernel: loading the model {share} %\n" for share in (0, 25, 50, 75, 100)]
            assert said == [*shares, "kernel: ready\n"]


async def test_role_that_dies_is_started_again(tmp_path: Path) -> None:
    script = f"{READY}\ntime.sleep(0.05)\nos._exit(3) if not os.path.exists('{tmp_path}/once') "
    script += f"and open('{tmp_path}/once', 'w').close() is None else sys.stdin.read()"
    small = role(tmp_path, script)
    async with kept(small):
        await wait_until(lambda: small.starts == 2 and small.ready.is_set())
    assert "small: ended (exit code 3); starting it again\n" in small.said


async def test_role_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    """Before it is ready it has its time; then it lives for as long as it beats."""
    script = f"""
time.sleep(1.2)
{READY}
for _ in range(16):
    time.sleep(0.1)
    print(json.dumps({{"event": "alive"}}), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
    small = role(tmp_path, script, hang_seconds=1.0)
    heard: list[bool] = []
    small._on_silence = lambda _name, silent: heard.append(silent)
    async with kept(small):
        began, first = time.monotonic(), small.about["pid"]
        await wait_until(lambda: not alive(first))
        assert time.monotonic() - began > 1.3
        await wait_until(lambda: small.about["pid"] != first)
    assert small.said[:3] == [
        "small: hangs\n",
        "small: has said nothing for 1 s; it is killed\n",
        "small: ended (killed by SIGKILL); starting it again\n",
    ]
    assert heard[:2] == [True, False]  # the next process begins well


async def test_role_that_takes_long_to_stop_does_not_count_as_hanging(tmp_path: Path) -> None:
    script = f"""
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1.5), sys.exit(0)))
{READY}
while True:
    time.sleep(0.02)
    print(json.dumps({{"event": "alive"}}), flush=True)
"""
    small = role(tmp_path, script, stop_seconds=10, hang_seconds=0.8)
    async with kept(small):
        pass
    assert small.said == []


def test_roles_all_beat_often_enough(tmp_path: Path) -> None:
    for spec in role_specs(ServeOptions(data_dir=tmp_path, hang_seconds=8), tmp_path):
        beats = spec.config["beat_seconds"], spec.beat_seconds
        assert (spec.hang_seconds, *beats) == (8, BEAT_SECONDS, BEAT_SECONDS)
        assert BEAT_SECONDS * (SILENT_BEATS + 1) <= 1  # a second, whenever its last beat was


def test_role_continues_to_beat_when_its_output_is_not_read(tmp_path: Path) -> None:
    """A supervisor that is stopped stops no role: 200,000 bytes are more than a pipe holds."""
    script = """
import asyncio, sys
from symphony_kernel.protocol.heartbeat import beat
said = []
def say():
    said.append(1)
    sys.stdout.write("x" * 999 + "\\n")
    sys.stdout.flush()
async def main():
    beating = asyncio.create_task(beat(0.001, say))
    await asyncio.sleep(1.0)
    sys.exit(0 if 10 < len(said) < 100 else 3)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.wait(20) == 0


async def test_role_that_does_not_retire_is_killed_and_started_again(tmp_path: Path) -> None:
    script = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{READY}
while True:
    time.sleep(60)
"""
    small = role(tmp_path, script)
    started: list[Started] = []
    small._on_process = lambda name, process: started.append(process)
    async with kept(small):
        first = small.about["pid"]
        assert started == [Started(first, 1)]
        await small.retire(2)  # another one, which is not there yet
        assert alive(first)
        await small.retire(1)
        await wait_until(lambda: small.about["pid"] != first and small.ready.is_set())
        assert not alive(first)
        assert started[1] == Started(small.about["pid"], 2)
        assert any("did not retire in time" in line for line in small.said)
        await small.retire(1)  # it has gone already
        assert alive(small.about["pid"])


async def test_role_that_writes_anything_is_kept(tmp_path: Path) -> None:
    """A worker that was taken over may write anything to its supervisor."""
    script = f"""
for said in ("[]", "7", "{{}}", "[" * 100_000, "x" * 3_000_000, "\\x1b[2Jgone"):
    print(said, flush=True)
what = "w" * 5000
for share in ("NaN", "1e999", "1" * 400, "-1", '"x"', "1e9"):
    print(f'{{{{"event": "progress", "what": "{{what}}", "share": {{share}}}}}}', flush=True)
for start in ('"x"', "null", "[]", "1"):
    print('{{"event": "retired", "role": "other", "start": ' + start + "}}", flush=True)
print("\\x1b[2Jlast", file=sys.stderr, flush=True)
{READY}
time.sleep(60)
"""
    small = role(tmp_path, script)
    heard: list[Any] = []
    small._on_progress = lambda _name, event: heard.append(event)
    async with kept(small):
        pass
    assert small.starts == 1
    assert heard == [None] + 6 * [{"what": "w" * 200, "share": 0.0}]
    assert not any("\x1b" in words for words in small.said), small.said
    assert {"small: \\x1b[2Jgone\n", "small: \\x1b[2Jlast\n"} <= set(small.said)


async def test_retirement_is_taken_from_the_gateway_only(tmp_path: Path) -> None:
    console = Console(lambda _: None, terminal=False)
    supervisor = Supervisor(ServeOptions(model="embedded", data_dir=tmp_path), console, tmp_path)
    *others, gateway = supervisor._roles
    for other in others:
        other.on_retired("worker-0", 1)
    assert not supervisor._retiring
    gateway.on_retired("worker-0", 1)
    assert len(supervisor._retiring) == 1
    await asyncio.gather(*supervisor._retiring)


@pytest.mark.parametrize(("code", "starts"), [(1, 3), (2, 1)])
async def test_role_that_never_starts_ends_the_server(
    tmp_path: Path, code: int, starts: int
) -> None:
    script = f"print('small: no such model', file=sys.stderr)\nsys.exit({code})"
    small = role(tmp_path, script)
    with pytest.raises(SupervisorError) as told:
        await asyncio.wait_for(small.keep(), 30)
    assert str(told.value) == f"small does not start (exit code {code}):\n    no such model"
    assert small.starts == starts


async def test_role_that_cannot_start_has_its_reason_in_one_line(tmp_path: Path) -> None:
    words = "size is 9\\n; at most 8" + 2000 * "."
    script = f"""
print(json.dumps({{"event": "refused", "words": "{words}"}}), flush=True)
print('small: what need not be read again', file=sys.stderr)
sys.exit({CONFIGURATION_WRONG})
"""
    small = role(tmp_path, script)
    with pytest.raises(SupervisorError) as told:
        await asyncio.wait_for(small.keep(), 30)
    assert str(told.value).startswith("small does not start: size is 9\\n; at most 8....")
    assert len(str(told.value)) < 1100
    assert small.starts == 1


FAILS_AGAIN = """
config = json.loads(sys.stdin.readline())
starts = os.path.join(os.path.dirname(__file__), "starts")
with open(starts, "a") as file:
    file.write("x")
number = os.path.getsize(starts)
if number == 1 or number == 8:
    print(json.dumps({"event": "ready", "pid": os.getpid()}), flush=True)
    if number == 8:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        sys.stdin.read()
sys.exit(CODE)
"""


@pytest.mark.parametrize("code", [1, CONFIGURATION_WRONG])
async def test_role_that_was_ready_may_fail_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr("symphony_runtime.supervisor.role._PAUSE_SECONDS", (0.01, 0.02))
    small = role(tmp_path, FAILS_AGAIN.replace("CODE", str(code)))
    async with kept(small):
        await wait_until(lambda: small.starts == 8 and small.ready.is_set(), 40)


async def test_role_that_is_not_ready_again_for_long_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symphony_runtime.supervisor.role._PAUSE_SECONDS", (0.01, 0.02))
    monkeypatch.setattr("symphony_runtime.supervisor.role.GIVE_UP_SECONDS", 0.3)
    small = role(tmp_path, FAILS_AGAIN.replace("number == 8", "False").replace("CODE", "1"))
    with pytest.raises(SupervisorError, match="does not start"):
        await asyncio.wait_for(small.keep(), 40)
    assert small.starts > 1


async def test_role_that_does_not_stop_is_killed_with_its_children(tmp_path: Path) -> None:
    script = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"event": "ready", "pid": os.getpid(), "child": child.pid}), flush=True)
time.sleep(600)
"""
    small = role(tmp_path, script)
    async with kept(small):
        pass
    await asyncio.sleep(0.1)
    assert not alive(small.about["pid"])
    assert not alive(small.about["child"])


def test_secrets_are_new_at_each_start_and_known_only_where_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    options = ServeOptions(workers=2, data_dir=tmp_path)
    first, second = (role_specs(options, tmp_path) for _ in range(2))
    kernel, *workers, gateway = first
    assert [spec.name for spec in first] == ["kernel", "worker-0", "worker-1", "gateway"]
    assert kernel.environment["OMP_WAIT_POLICY"] == "PASSIVE"
    secrets: dict[str, Any] = kernel.config["secrets"]
    assert len(set(secrets.values())) == 3
    for worker in workers:
        assert worker.config["secret"] == secrets[worker.name]
        assert "AWS_SECRET_ACCESS_KEY" not in worker.environment
        assert gateway.config["secrets"][worker.name] == worker.config["secret"]
    assert gateway.config["secret"] == secrets["gateway"]
    assert second[0].config["secrets"] != secrets


SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "hush",
    "DATABASE_URL": "postgresql://hush@db.example",
    "HF_TOKEN": "hush",
    "NVIDIA_API_KEY": "hush",
    "PGPASSWORD": "hush",
    "PGP_KEY": "hush",
    "SYMPHONY_ADMIN_KEY": "hush",
    "SYMPHONY_KEY": "hush",
    "SYMPHONY_STORE": "postgresql://symphony:hush@db.example/symphony",
}
PLAIN = {
    "CUDA_VISIBLE_DEVICES": "0",
    "LC_TIME": "C.UTF-8",
    "MKL_NUM_THREADS": "2",
    "PYTHONUNBUFFERED": "1",
    "SSL_CERT_FILE": "/etc/ssl/ours.pem",
    "SYMPHONY_LOG": "info",
    "TOKENIZERS_PARALLELISM": "false",
    "TRITON_CACHE_DIR": "/tmp/triton",
    "TZ": "UTC",
}


def test_roles_see_only_what_they_need_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**SECRETS, **PLAIN}.items():
        monkeypatch.setenv(name, value)
    for store, of_gateway in (("", set()), ("postgresql://db.example", {"PGPASSWORD"})):
        roles = role_specs(ServeOptions(data_dir=tmp_path, store=store), tmp_path)
        seen = {role.name: role.environment for role in roles}
        assert seen["gateway"].keys() & SECRETS.keys() == of_gateway
        assert not (seen["kernel"].keys() | seen["worker-0"].keys()) & SECRETS.keys()
        assert seen["kernel"].keys() & PLAIN.keys() == PLAIN.keys() - {"SSL_CERT_FILE"}
        assert seen["gateway"].keys() & PLAIN.keys() == {
            "LC_TIME", "PYTHONUNBUFFERED", "SSL_CERT_FILE", "SYMPHONY_LOG", "TZ",
        }  # fmt: skip
        assert seen["worker-0"].keys() & PLAIN.keys() == {"SYMPHONY_LOG"}
        assert all({"PATH", "HOME"} <= each.keys() for each in seen.values())


def test_gateway_sees_opentelemetrys_environment_if_it_sends_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=hush", "OTEL_SERVICE_NAME": "ours"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    def seen(url: str) -> dict[str, set[str]]:
        roles = role_specs(ServeOptions(data_dir=tmp_path, otlp=url), tmp_path)
        return {role.name: role.environment.keys() & given.keys() for role in roles}

    nothing: dict[str, set[str]] = {"kernel": set(), "worker-0": set(), "gateway": set()}
    assert seen("") == nothing
    assert seen("http://collector:4318") == {**nothing, "gateway": set(given)}
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    assert seen("") == {**nothing, "gateway": set(given)}
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert seen("http://collector:4318") == nothing


def test_server_processes_hold_no_secret_of_the_operator(tmp_path: Path) -> None:
    given = {name: value for name, value in SECRETS.items() if name != "SYMPHONY_STORE"}
    with running_server(tmp_path, environment=given) as server:
        looked = 0
        for process in descendants(server.process.pid):
            with contextlib.suppress(PermissionError):  # a worker that is contained, unless to root
                seen = (Path("/proc") / str(process) / "environ").read_bytes().split(b"\0")
                assert not {each.split(b"=")[0].decode() for each in seen} & SECRETS.keys()
                looked += 1
        assert looked >= 2, "kernel and gateway at least"
        own = f"state/symphony/servers/{server.process.pid}.json"
        asyncio.run(wait_until((tmp_path / own).exists))  # it comes behind server.json
        for name in ("server.json", "gateway.id", own):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, name


def test_gateway_name_file_is_made_readable_by_its_owner_only(tmp_path: Path) -> None:
    (tmp_path / "gateway.id").write_text("0123456789abcdef\n")
    (tmp_path / "gateway.id").chmod(0o644)
    assert gateway_name(tmp_path) == "0123456789abcdef"
    assert (tmp_path / "gateway.id").stat().st_mode & 0o777 == 0o600


def options_of(folder: Path, text: str, **given: Any) -> ServeOptions:
    """Return the options of a file with this text, and of a command line."""
    (folder / "symphony.toml").write_text(text)
    return read_options(folder / "symphony.toml", given)


def test_options_of_the_command_line_win_over_the_file(tmp_path: Path) -> None:
    text = 'port = 1234\nworkers = 3\ndata_dir = "data"\ndrain_seconds = 2\n'
    options = options_of(tmp_path, text, port=5, workers=None)
    assert (options.port, options.workers, options.drain_seconds) == (5, 3, 2)
    assert options.data_dir == tmp_path / "data"
    assert read_options(None, {}) == ServeOptions()


@pytest.mark.parametrize(
    "name", ["pool_bytes", "host_pool_tokens", "tenant_host_tokens_max", "tenant_disk_tokens_max",
             "threads"]
)  # fmt: skip
def test_options_without_a_default_can_be_set_in_the_file(tmp_path: Path, name: str) -> None:
    assert getattr(options_of(tmp_path, f"{name} = 7\n"), name) == 7
    with pytest.raises(OptionsError, match=f"{name} must be an integer"):
        options_of(tmp_path, f'{name} = "7"\n')


def test_options_of_device_sharing_reach_the_kernel(tmp_path: Path) -> None:
    text = "max_decode_gap_ms = 50\ndelivery_ms = 5\n[tenant_weights]\nresearch = 2\n"
    kernel, *_ = role_specs(options_of(tmp_path, text), tmp_path)
    assert kernel.config["max_decode_gap_ms"] == 50
    assert kernel.config["delivery_ms"] == 5
    assert kernel.config["tenant_weights"] == {"research": 2}
    shares = ("[tenant_weights]\na = 0", '[tenant_weights]\na = "2"')
    for wrong in ("max_decode_gap_ms = -1", "delivery_ms = -1", "delivery_ms = 2000", *shares):
        with pytest.raises(OptionsError, match=wrong.split()[0].strip("[]")):
            options_of(tmp_path, wrong)


def test_options_of_tensor_parallelism_reach_the_kernel(tmp_path: Path) -> None:
    text = "tensor_parallel = 4\n"
    kernel, *_ = role_specs(options_of(tmp_path, text), tmp_path)
    assert kernel.config["tensor_parallel"] == 4
    for wrong, words in (({"tensor_parallel": 0}, "tensor_parallel must be an integer from 1"),
                         ({"disk_pool_tokens": 1600}, "no disk tier")):  # fmt: skip
        with pytest.raises(OptionsError, match=words):
            options_of(tmp_path, text, **wrong)


def test_store_url_is_known_to_the_gateway_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://symphony:hush@db.example/symphony"
    monkeypatch.setenv("SYMPHONY_STORE", url)
    options = read_options(None, {"store": url})
    assert "hush" not in repr(options)
    roles = role_specs(options, tmp_path)
    assert [role.name for role in roles if role.config.get("store") == url] == ["gateway"]
    assert all("SYMPHONY_STORE" not in role.environment for role in roles)
    with pytest.raises(OptionsError, match="store must be the URL of a PostgreSQL database"):
        read_options(None, {"store": "mysql://db.example"})


def test_journal_is_next_to_the_kernels_socket_unless_disabled(tmp_path: Path) -> None:
    for given, wanted in (({}, str(tmp_path / "journal")), ({"journal": False}, None)):
        kernel, *_ = role_specs(read_options(None, given), tmp_path)
        assert kernel.config["journal"] == wanted
        assert kernel.config["ended"] is None


async def test_role_knows_how_the_process_before_it_ended(tmp_path: Path) -> None:
    script = """
config = json.loads(sys.stdin.readline())
print(json.dumps({"event": "ready", "ended": config["ended"]}), flush=True)
sys.exit(7) if config["ended"] is None else sys.stdin.read()
"""
    small = role(tmp_path, script)
    small.spec.config["ended"] = None
    async with kept(small):
        await wait_until(lambda: small.starts == 2 and small.ready.is_set())
        assert small.about["ended"] == 7


def test_data_directory_has_one_server(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        second = symphony("serve", "--data-dir", str(tmp_path))
        assert second.returncode == 1
        assert "another server uses" in second.stderr
        place = read_place(tmp_path / "server.json")
        assert place is not None
        assert place.pid == server.process.pid
        own = tmp_path / "state" / "symphony" / "servers" / f"{place.pid}.json"
        assert read_place(own) == place
        assert server.log.read_text().endswith(f"serving simulated (tiny) on {place.url}\n")
    assert not own.exists()
    assert not (tmp_path / "server.json").exists()


def test_live_servers_are_those_with_a_process_and_a_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with contextlib.ExitStack() as stack:
        processes = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
        for process in processes:
            stack.callback(process.wait)
            stack.callback(process.kill)
        places = [
            ServerPlace(f"http://127.0.0.1:{n}", tmp_path / str(n) / "default.key", process.pid)
            for n, process in enumerate(processes)
        ]
        for n, place in enumerate(places):
            announce(place)
            os.utime(place_of(place.data_dir), (n, n))
        assert live_servers() == places[::-1]
        withdraw(places[2].data_dir, places[1].pid)  # another's: nothing is removed there
        assert read_place(place_of(places[2].data_dir)) == places[2]
        announce(places[1])
        processes[0].kill()
        processes[0].wait()
        write_place(place_of(places[2].data_dir), places[1])  # another server took its place
        assert live_servers() == [places[1]]
        assert len(list(user_servers().iterdir())) == 1
        withdraw(places[1].data_dir, places[1].pid)
        assert live_servers() == []


def test_server_with_an_unusable_configuration_ends_at_once(tmp_path: Path) -> None:
    for arguments, words in (
        (["--host", "0.0.0.0"], "can be reached by other machines"),
        (["--host", "192.0.2.1"], "can be reached by other machines"),
        (["--executor", "torch", "--model", str(tmp_path / "none")], "none"),
    ):
        options = ("--port", "0", "--executor", "simulated", "--data-dir", str(tmp_path))
        done = symphony("serve", *options, *arguments, timeout=100)
        assert done.returncode == 1
        assert words in done.stderr


def test_server_at_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    with running_server(tmp_path, "--drain-seconds", "60") as server:
        below = descendants(server.process.pid)
        for _ in range(2):
            server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0
        assert not still_alive(below)
