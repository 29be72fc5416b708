"""Starting, watching and stopping; small scripts play roles that real ones are too good for."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from symphony_kernel.protocol.role_processes import Started
from symphony_runtime.config.serve import OptionsError, ServeOptions, read_options
from symphony_runtime.config.server_place import (
    ServerPlace,
    read_place,
    remove_place,
    write_place,
)
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

from tests.support.server.server import alive, descendants, running_server, still_alive

READY = 'print(json.dumps({"event": "ready", "pid": os.getpid()}), flush=True)'


def role(
    tmp_path: Path,
    script: str,
    said: list[str] | None = None,
    stop_seconds: float = 0.5,
    hang_seconds: float = 0.0,
) -> Role:
    (tmp_path / "small_role.py").write_text(f"import json, os, signal, sys, time\n{script}\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    console = Console((said if said is not None else []).append, terminal=False)
    spec = RoleSpec(
        "small", "small_role", {"answer": 42}, environment, stop_seconds,
        beat_seconds=BEAT_SECONDS if hang_seconds else 0.0, hang_seconds=hang_seconds,
    )  # fmt: skip
    return Role(spec, console)


async def test_a_role_gets_its_configuration_and_stops_on_sigterm(tmp_path: Path) -> None:
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
    keeping = asyncio.create_task(small.keep())
    await asyncio.wait_for(small.ready.wait(), 20)
    assert alive(small.about["pid"])
    await small.stop()
    await asyncio.wait_for(keeping, 20)
    assert not alive(small.about["pid"])
    assert small.starts == 1


async def test_a_role_hears_notices_and_the_next_process_the_last_of_each(tmp_path: Path) -> None:
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
    keeping = asyncio.create_task(small.keep())
    await asyncio.wait_for(small.ready.wait(), 20)
    small.send_notice("a", {"what": "old"})
    small.send_notice("a", {"what": "new"})
    small.send_notice("b", {"what": "end"})
    small.send_notice("b", {"what": "last"})
    async with asyncio.timeout(20):
        while heard.count("last") < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await small.stop()
    await keeping
    assert heard == [None, "old", "new", "end", None, "new", "last"]


def test_progress_is_a_bar_on_a_terminal_and_few_lines_elsewhere() -> None:
    for terminal in (True, False):
        said: list[str] = []
        console = Console(said.append, terminal=terminal)
        for percent in range(0, 101, 5):
            console.progress("kernel", "loading the model", percent / 100)
        console.say("serving")
        if terminal:
            assert said[10].endswith("[" + "#" * 15 + " " * 15 + "]  50 %")
            assert all(words.startswith("\r\x1b[K") for words in said[:-1])
        else:
            assert said == [
                *(f"kernel: loading the model {share} %\n" for share in (0, 25, 50, 75, 100)),
                "serving\n",
            ]


async def test_a_role_that_dies_is_started_again(tmp_path: Path) -> None:
    script = f"{READY}\ntime.sleep(0.05)\nos._exit(3) if not os.path.exists('{tmp_path}/once') "
    script += f"and open('{tmp_path}/once', 'w').close() is None else sys.stdin.read()"
    said: list[str] = []
    small = role(tmp_path, script, said)
    keeping = asyncio.create_task(small.keep())
    async with asyncio.timeout(20):
        while small.starts < 2 or not small.ready.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert "small: ended (exit code 3); starting it again\n" in said
    await small.stop()
    await keeping


async def test_a_role_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    """It has its time before it is ready; then it lives while it beats, and not when it stops."""
    script = f"""
time.sleep(1.2)
{READY}
for _ in range(16):
    time.sleep(0.1)
    print(json.dumps({{"event": "alive"}}), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
    said: list[str] = []
    small = role(tmp_path, script, said, hang_seconds=1.0)
    heard: list[bool] = []
    small._on_silence = lambda _name, silent: heard.append(silent)
    keeping = asyncio.create_task(small.keep())
    await asyncio.wait_for(small.ready.wait(), 20)
    began, first = time.monotonic(), small.about["pid"]
    async with asyncio.timeout(20):
        while alive(first):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert time.monotonic() - began > 1.3
    async with asyncio.timeout(20):
        while small.about["pid"] == first:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert said[:3] == [
        "small: hangs\n",
        "small: has said nothing for 1 s; it is killed\n",
        "small: ended (killed by SIGKILL); starting it again\n",
    ]
    assert heard[:2] == [True, False]  # the next process begins well
    await small.stop()
    await keeping


async def test_a_role_that_stops_for_long_is_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    script = f"""
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1.5), sys.exit(0)))
{READY}
while True:
    time.sleep(0.02)
    print(json.dumps({{"event": "alive"}}), flush=True)
"""
    said: list[str] = []
    small = role(tmp_path, script, said, stop_seconds=10, hang_seconds=0.8)
    keeping = asyncio.create_task(small.keep())
    await asyncio.wait_for(small.ready.wait(), 20)
    await small.stop()
    await keeping
    assert said == []


def test_every_role_beats_often_enough(tmp_path: Path) -> None:
    for spec in role_specs(ServeOptions(data_dir=tmp_path, hang_seconds=8), tmp_path):
        beats = spec.config["beat_seconds"], spec.beat_seconds
        assert (spec.hang_seconds, *beats) == (8, BEAT_SECONDS, BEAT_SECONDS)
        assert BEAT_SECONDS * (SILENT_BEATS + 1) <= 1  # a second, whenever its last beat was


def test_a_role_goes_on_beating_when_nobody_reads(tmp_path: Path) -> None:
    """A supervisor that is stopped stops nobody else: 200,000 bytes are more than a pipe holds."""
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


async def test_a_role_that_does_not_retire_is_killed_and_started_again(tmp_path: Path) -> None:
    script = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{READY}
while True:
    time.sleep(60)
"""
    said: list[str] = []
    small = role(tmp_path, script, said)
    started: list[Started] = []
    small._on_process = lambda name, process: started.append(process)
    keeping = asyncio.create_task(small.keep())
    await asyncio.wait_for(small.ready.wait(), 20)
    first = small.about["pid"]
    assert started == [Started(first, 1)]
    await small.retire(2)  # another one, which is not there yet
    assert alive(first)
    await small.retire(1)
    async with asyncio.timeout(20):
        while small.about["pid"] == first or not small.ready.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert not alive(first)
    assert started[1] == Started(small.about["pid"], 2)
    assert any("did not retire in time" in line for line in said)
    await small.retire(1)  # it has gone already
    assert alive(small.about["pid"])
    await small.stop()
    await keeping


async def test_a_role_that_says_anything_is_kept(tmp_path: Path) -> None:
    """A worker that was taken over writes what it likes; that is its own affair."""
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
    said: list[str] = []
    small = role(tmp_path, script, said)
    heard: list[Any] = []
    small._on_progress = lambda _name, event: heard.append(event)
    keeping = asyncio.create_task(small.keep())
    await asyncio.wait_for(small.ready.wait(), 20)
    await small.stop()
    await keeping
    assert small.starts == 1
    assert heard == [None] + 6 * [{"what": "w" * 200, "share": 0.0}]
    assert not any("\x1b" in words for words in said), said
    assert {"small: \\x1b[2Jgone\n", "small: \\x1b[2Jlast\n"} <= set(said)


async def test_the_gateway_alone_has_others_retired(tmp_path: Path) -> None:
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
async def test_a_role_that_never_starts_ends_everything(
    tmp_path: Path, code: int, starts: int
) -> None:
    script = f"print('small: no such model', file=sys.stderr)\nsys.exit({code})"
    small = role(tmp_path, script)
    with pytest.raises(SupervisorError) as told:
        await asyncio.wait_for(small.keep(), 30)
    assert str(told.value) == f"small does not start (exit code {code}):\n    no such model"
    assert small.starts == starts


async def test_why_a_role_cannot_start_is_said_in_one_line(tmp_path: Path) -> None:
    words = "size is 9\\n; at most 8" + 2000 * "."
    script = f"""
print(json.dumps({{"event": "refused", "words": "{words}"}}), flush=True)
print('small: what nobody needs to read again', file=sys.stderr)
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
async def test_a_role_that_was_ready_may_fail_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr("symphony_runtime.supervisor.role._PAUSE_SECONDS", (0.01, 0.02))
    small = role(tmp_path, FAILS_AGAIN.replace("CODE", str(code)))
    keeping = asyncio.create_task(small.keep())
    async with asyncio.timeout(40):
        while not (small.starts == 8 and small.ready.is_set()):
            assert not keeping.done() or keeping.result()
            await asyncio.sleep(0.02)
    await small.stop()
    await keeping


async def test_a_role_that_is_not_ready_again_for_long_ends_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symphony_runtime.supervisor.role._PAUSE_SECONDS", (0.01, 0.02))
    monkeypatch.setattr("symphony_runtime.supervisor.role.GIVE_UP_SECONDS", 0.3)
    small = role(tmp_path, FAILS_AGAIN.replace("number == 8", "False").replace("CODE", "1"))
    with pytest.raises(SupervisorError, match="does not start"):
        await asyncio.wait_for(small.keep(), 40)
    assert small.starts > 1


async def test_a_role_that_does_not_stop_is_killed_with_its_children(tmp_path: Path) -> None:
    script = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"event": "ready", "pid": os.getpid(), "child": child.pid}), flush=True)
time.sleep(600)
"""
    small = role(tmp_path, script)
    keeping = asyncio.create_task(small.keep())
    await asyncio.wait_for(small.ready.wait(), 20)
    await asyncio.wait_for(small.stop(), 10)
    await asyncio.wait_for(keeping, 20)
    await asyncio.sleep(0.1)
    assert not alive(small.about["pid"])
    assert not alive(small.about["child"])


def test_progress_is_one_line_on_a_terminal_and_few_lines_elsewhere() -> None:
    for terminal, lines in ((True, 0), (False, 5)):
        said: list[str] = []
        console = Console(said.append, terminal=terminal)
        for percent in range(101):
            console.progress("kernel", "loading the model", percent / 100)
        assert "".join(said).count("\n") == lines
        console.line("kernel", "ready")
        assert said[-1] == "kernel: ready\n"
        assert (said[-2] == "\r\x1b[K") is terminal


def test_secrets_are_new_each_time_and_workers_see_little(
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


def test_each_role_sees_what_it_needs_of_the_environment(
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


def test_no_process_of_a_server_holds_the_operator_s_secrets(tmp_path: Path) -> None:
    given = {name: value for name, value in SECRETS.items() if name != "SYMPHONY_STORE"}
    with running_server(tmp_path, environment=given) as server:
        looked = 0
        for process in descendants(server.process.pid):
            with contextlib.suppress(PermissionError):  # a worker that is contained, unless to root
                seen = (Path("/proc") / str(process) / "environ").read_bytes().split(b"\0")
                assert not {each.split(b"=")[0].decode() for each in seen} & SECRETS.keys()
                looked += 1
        assert looked >= 2, "kernel and gateway at least"
        for name in ("server.json", "gateway.id", "state/symphony/server.json"):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, name


def test_a_gateway_s_name_that_others_could_read_is_its_owner_s_again(tmp_path: Path) -> None:
    (tmp_path / "gateway.id").write_text("0123456789abcdef\n")
    (tmp_path / "gateway.id").chmod(0o644)
    assert gateway_name(tmp_path) == "0123456789abcdef"
    assert (tmp_path / "gateway.id").stat().st_mode & 0o777 == 0o600


def test_options_come_from_the_file_and_the_command_line_wins(tmp_path: Path) -> None:
    config = tmp_path / "symphony.toml"
    config.write_text('port = 1234\nworkers = 3\ndata_dir = "data"\ndrain_seconds = 2\n')
    options = read_options(config, {"port": 5, "workers": None})
    assert (options.port, options.workers, options.drain_seconds) == (5, 3, 2)
    assert options.data_dir == tmp_path / "data"
    assert read_options(None, {}) == ServeOptions()


@pytest.mark.parametrize(
    "name",
    [
        "pool_bytes",
        "host_pool_tokens",
        "tenant_host_tokens_max",
        "tenant_disk_tokens_max",
        "threads",
    ],
)
def test_what_nobody_sets_by_default_can_be_set_in_the_file(tmp_path: Path, name: str) -> None:
    config = tmp_path / "symphony.toml"
    config.write_text(f"{name} = 7\n")
    assert getattr(read_options(config, {}), name) == 7
    config.write_text(f'{name} = "7"\n')
    with pytest.raises(OptionsError, match=f"{name} must be an integer"):
        read_options(config, {})


def test_how_the_device_is_shared_reaches_the_kernel(tmp_path: Path) -> None:
    config = tmp_path / "symphony.toml"
    config.write_text("max_decode_gap_ms = 50\ndelivery_ms = 5\n[tenant_weights]\nresearch = 2\n")
    kernel, *_ = role_specs(read_options(config, {}), tmp_path)
    assert kernel.config["max_decode_gap_ms"] == 50
    assert kernel.config["delivery_ms"] == 5
    assert kernel.config["tenant_weights"] == {"research": 2}
    shares = ("[tenant_weights]\na = 0", '[tenant_weights]\na = "2"')
    for wrong in ("max_decode_gap_ms = -1", "delivery_ms = -1", "delivery_ms = 2000", *shares):
        config.write_text(wrong)
        with pytest.raises(OptionsError, match=wrong.split()[0].strip("[]")):
            read_options(config, {})


def test_over_how_many_devices_a_model_goes_reaches_the_kernel(tmp_path: Path) -> None:
    config = tmp_path / "symphony.toml"
    config.write_text("tensor_parallel = 4\n")
    kernel, *_ = role_specs(read_options(config, {}), tmp_path)
    assert kernel.config["tensor_parallel"] == 4
    for wrong, words in (({"tensor_parallel": 0}, "tensor_parallel must be an integer from 1"),
                         ({"disk_pool_tokens": 1600}, "no disk tier")):  # fmt: skip
        with pytest.raises(OptionsError, match=words):
            read_options(config, wrong)


def test_where_the_books_are_is_told_to_the_gateway_and_to_nobody_else(
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


def test_the_kernels_journal_is_beside_its_socket_unless_it_keeps_none(tmp_path: Path) -> None:
    for given, wanted in (({}, str(tmp_path / "journal")), ({"journal": False}, None)):
        kernel, *_ = role_specs(read_options(None, given), tmp_path)
        assert kernel.config["journal"] == wanted
        assert kernel.config["ended"] is None


async def test_a_role_is_told_how_the_one_before_it_ended(tmp_path: Path) -> None:
    script = """
config = json.loads(sys.stdin.readline())
print(json.dumps({"event": "ready", "ended": config["ended"]}), flush=True)
sys.exit(7) if config["ended"] is None else sys.stdin.read()
"""
    small = role(tmp_path, script)
    small.spec.config["ended"] = None
    keeping = asyncio.create_task(small.keep())
    while small.starts < 2 or not small.ready.is_set():
        await small.ready.wait()
        await asyncio.sleep(0.01)
    assert small.about["ended"] == 7
    await small.stop()
    await keeping


def test_one_data_directory_has_one_server(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        second = subprocess.run(
            [sys.executable, "-m", "symphony_runtime.cli", "serve", "--data-dir", str(tmp_path)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert "another server uses" in second.stderr
        place = read_place(tmp_path / "server.json")
        assert place is not None
        assert place.pid == server.process.pid
        assert (tmp_path / "state" / "symphony" / "server.json").exists()
    assert not (tmp_path / "state" / "symphony" / "server.json").exists()


def test_commands_find_the_newest_server_that_runs(tmp_path: Path) -> None:
    known = tmp_path / "server.json"
    first, second = (
        ServerPlace(f"http://127.0.0.1:{pid}", tmp_path / str(pid) / "default.key", pid)
        for pid in (1, 2)
    )
    own = first.key_file.with_name("server.json")
    write_place(own, first)
    for ended in (False, True):
        write_place(known, second)
        if ended:
            own.unlink()
        remove_place(known, 1, None)
        assert read_place(known) == second
        remove_place(known, 2, first)
        assert read_place(known) == (None if ended else first)


def test_a_configuration_that_cannot_be_served_ends_at_once(tmp_path: Path) -> None:
    for arguments, words in (
        (["--host", "0.0.0.0"], "can be reached by other machines"),
        (["--host", "192.0.2.1"], "can be reached by other machines"),
        (["--executor", "torch", "--model", str(tmp_path / "none")], "none"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "symphony_runtime.cli", "serve", "--port", "0",
             "--executor", "simulated", "--data-dir", str(tmp_path), *arguments],
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert words in done.stderr


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    with running_server(tmp_path, "--drain-seconds", "60") as server:
        below = descendants(server.process.pid)
        for _ in range(2):
            server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0
        assert not still_alive(below)
