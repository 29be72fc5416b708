"""Every command, as its user types it, with a real server."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from symphony_runtime.cli.main import main

from tests.e2e import programs as guests
from tests.support.requirements import lacking
from tests.support.server.server import SYMPHONY, RunningServer, symphony
from tests.support.server.terminal import on_terminal

SECONDS_MAX = 60


def program(tmp_path: Path, name: str, wasm: bytes) -> str:
    path = tmp_path / f"{name}.wasm"
    path.write_bytes(wasm)
    return str(path)


def test_run_takes_a_file_and_then_its_name(server: RunningServer, tmp_path: Path) -> None:
    echo = program(tmp_path, "echo", guests.ECHO_WASM)
    first = server.symphony("run", echo, "--input", '"häh"')
    assert (first.returncode, first.stdout, first.stderr) == (7, "häh", "")
    second = server.symphony("run", "echo", "--input", '{"a":1}')
    assert (second.returncode, second.stdout) == (7, '{"a": 1}')
    third = server.symphony("run", "echo", "--input", "no json")
    assert third.stdout == "no json"
    (tmp_path / "input").write_text("from a file")
    fourth = server.symphony("run", "echo", "--input", f"@{tmp_path / 'input'}")
    assert fourth.stdout == "from a file"


@pytest.mark.parametrize(
    ("wasm", "arguments", "code", "words"),
    [
        (guests.TRAP_WASM, [], 134, "trapped: "),
        (guests.SPIN_WASM, ["--limit", "cpu_ms=50"], 137, "was killed: cpu"),
        (guests.SPIN_WASM, ["--limit", "wall_ms=1e9"], 2, "NAME=NUMBER"),
        (guests.SPIN_WASM, ["--limit", "walls=1"], 1, "unknown limits: walls"),
        (guests.SPIN_WASM, ["--entry", "nothing"], 1, "no entry 'nothing'"),
        (guests.REFUSED_WASM, [], 1, "path_open"),
        (b"no wasm", [], 1, "not a WebAssembly module"),
    ],
)
def test_run_that_fails_says_why_and_exits_with_a_code(
    server: RunningServer,
    tmp_path: Path,
    wasm: bytes,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    done = server.symphony("run", program(tmp_path, "bad", wasm), *arguments)
    assert done.returncode == code
    assert words in done.stderr


def test_run_interactive_sends_lines_of_stdin_as_messages(
    server: RunningServer, tmp_path: Path
) -> None:
    parrot = program(tmp_path, "parrot", guests.PARROT_WASM)
    talk = server.symphony("run", parrot, "-i", "-v", input="one\ntwo\n")
    assert (talk.returncode, talk.stdout) == (0, "onetwo")
    assert talk.stderr == "warning: bye\n"
    silent = server.symphony("run", parrot, input="not read\n")
    assert (silent.returncode, silent.stdout) == (0, "")


def test_run_shows_what_the_program_logs_as_errors(server: RunningServer, tmp_path: Path) -> None:
    complainer = program(tmp_path, "complainer", guests.COMPLAINER_WASM)
    failed = server.symphony("run", complainer)
    assert (failed.returncode, failed.stdout, failed.stderr) == (1, "", "error: why\n")
    verbose = server.symphony("run", complainer, "-v")
    assert verbose.stderr == "error: why\ninfo: more\n"


def on_a_terminal(
    server: RunningServer, *arguments: str, typed: bytes = b"", until: bytes | None = None
) -> tuple[int, str]:
    """Run a command on a terminal; interrupt it when it shows `until`."""
    shows = None if until is None else lambda shown: until in shown
    command = [*SYMPHONY, *arguments]
    code, shown = on_terminal(command, server.environment, shows, typed=typed)
    after = shown.replace(b"\r\n", b"\n").rpartition(b"\x1b[K")[2]  # what stays of its progress
    return code, after.decode()


def test_run_on_a_terminal_puts_all_but_the_text_on_lines_of_its_own(
    server: RunningServer, tmp_path: Path
) -> None:
    speaker = program(tmp_path, "speaker", guests.SPEAKER_WASM)
    end = "symphony: the run trapped: unreachable instruction\n"
    shown = on_a_terminal(server, "run", speaker, "-v")
    assert shown == (134, f"hello\nwarning: bye\n{end}")
    assert on_a_terminal(server, "run", speaker) == (134, f"hello\n{end}")
    piped = server.symphony("run", speaker, "-v")
    assert (piped.stdout, piped.stderr) == ("hello", f"warning: bye\n{end}")


def test_run_with_lines_ends_each_message_with_a_line_break(
    server: RunningServer, tmp_path: Path
) -> None:
    parrot = program(tmp_path, "parrot", guests.PARROT_WASM)
    talk = server.symphony("run", parrot, "-i", "--lines", input="one\n\ntwo")
    assert talk.stdout == "one\n\ntwo\n"


def test_run_interactive_ends_at_ctrl_c(server: RunningServer, tmp_path: Path) -> None:
    parrot = program(tmp_path, "parrot", guests.PARROT_WASM)
    talk = on_a_terminal(server, "run", parrot, "-i", typed=b"hello\n", until=b"\x1b[Khello")
    assert talk == (130, "hello\n")


def test_run_with_json_prints_its_events(server: RunningServer, tmp_path: Path) -> None:
    echo = program(tmp_path, "echo", guests.ECHO_WASM)
    done = server.symphony("run", echo, "--input", "x", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["run", "status", "message", "usage", "status"]
    assert done.returncode == 7
    listed = json.loads(server.symphony("runs", "--json", "--limit", "1").stdout)
    assert events[0]["run"] == listed[0]["id"]


def test_upload_with_a_manifest_shows_it(server: RunningServer, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text('{"description": "Says it\\nagain.", "input_schema": {"type": "object"}}')
    wasm = program(tmp_path, "described", guests.ECHO_WASM)
    assert server.symphony("upload", wasm, "--manifest", str(manifest)).returncode == 0
    assert "Says it?again." in server.symphony("programs").stdout
    shown = json.loads(server.symphony("programs", "show", "described").stdout)
    assert shown["input_schema"] == {"type": "object"}
    refused = server.symphony("run", "described", "--input", "[]")
    assert (refused.returncode, "`input` must be an object" in refused.stderr) == (1, True)
    manifest.write_text('{"descriptions": ""}')
    done = server.symphony("upload", wasm, "--manifest", str(manifest))
    assert (done.returncode, "`descriptions` is unknown" in done.stderr) == (1, True)
    assert server.symphony("programs", "rm", "described").returncode == 0


def test_programs_and_runs_are_listed_and_removed(server: RunningServer, tmp_path: Path) -> None:
    hello = program(tmp_path, "greeter", guests.HELLO_WASM)
    uploaded = server.symphony("upload", hello, "--json")
    assert json.loads(uploaded.stdout)["name"] == "greeter"
    assert server.symphony("upload", hello, "--name", "other").stdout.startswith("other")
    listed = server.symphony("programs")
    assert "other" in listed.stdout
    assert json.loads(server.symphony("programs", "--json").stdout)[0]["name"] == "other"
    run = server.symphony("run", "other", "--detach").stdout.strip()
    runs = json.loads(server.symphony("runs", "--json", "--limit", "3").stdout)
    assert runs[0]["id"] == run
    assert run in server.symphony("runs").stdout
    assert server.symphony("programs", "rm", "other").returncode == 0
    gone = server.symphony("run", "other")
    assert gone.returncode == 1
    assert gone.stderr.startswith(
        "symphony: there is no such program: 'other' (`symphony programs`"
    )


def test_runs_show_live_ones_and_why_a_program_exited(
    server: RunningServer, tmp_path: Path
) -> None:
    complainer = program(tmp_path, "complainer", guests.COMPLAINER_WASM)
    assert server.symphony("run", complainer).returncode == 1
    row = server.symphony("runs", "--limit", "1").stdout.splitlines()[1]
    assert row.split()[1:4] == ["complainer", "exited", "1"]
    assert row.endswith("  why")
    parrot = program(tmp_path, "parrot", guests.PARROT_WASM)
    run = server.symphony("run", parrot, "--detach").stdout.strip()
    live = server.symphony("runs", "--live").stdout
    assert run in live
    assert "complainer" not in live
    assert server.symphony("cancel", run).returncode == 0
    assert run not in server.symphony("runs", "--live").stdout


def test_trace_is_written_to_a_file_unless_stdout_is_named(
    server: RunningServer, tmp_path: Path
) -> None:
    hello = program(tmp_path, "hello", guests.HELLO_WASM)
    done = server.symphony("run", hello, "--trace", "--json")
    run = json.loads(done.stdout.splitlines()[0])["run"]
    saved = server.symphony("trace", run, cwd=tmp_path)
    file = tmp_path / f"{run}.trace.json"
    assert (saved.returncode, saved.stdout) == (0, "")
    assert saved.stderr.startswith(f"{file.name}: ")
    piped = server.symphony("trace", run, "-o", "-", cwd=tmp_path)
    assert json.loads(piped.stdout) == json.loads(file.read_text())
    assert piped.stderr == ""
    named = server.symphony("trace", run, "-o", str(tmp_path / "other"))
    assert named.returncode == 0
    assert (tmp_path / "other").read_text() == file.read_text()


def test_logs_follow_a_run_until_it_is_cancelled(server: RunningServer, tmp_path: Path) -> None:
    parrot = program(tmp_path, "parrot", guests.PARROT_WASM)
    run = server.symphony("run", parrot, "--detach").stdout.strip()
    assert server.symphony("logs", run).stdout == ""
    cancelled = server.symphony("cancel", run)
    assert cancelled.stdout == "killed it was cancelled\n"
    done = json.loads(server.symphony("run", parrot, "--detach", "--json").stdout)["id"]
    follow = subprocess.Popen(
        [*SYMPHONY, "logs", "-f", done], stdout=subprocess.PIPE, text=True, env=server.environment
    )
    assert json.loads(server.symphony("cancel", done, "--json").stdout)["id"] == done
    assert follow.communicate(timeout=SECONDS_MAX)[0] == ""


def test_kv_get_and_put_copy_files_from_and_to_the_server(
    server: RunningServer, tmp_path: Path
) -> None:
    def kv(*arguments: str) -> subprocess.CompletedProcess[str]:
        return server.symphony("kv", *arguments, cwd=tmp_path)

    save = program(tmp_path, "save", guests.SAVE_WASM)
    assert server.symphony("run", save).returncode == 0
    got = kv("get", "notes/first")
    assert (got.returncode, got.stderr) == (0, "")
    file = tmp_path / "first.safetensors"
    assert got.stdout == f"first.safetensors  {file.stat().st_size} bytes\n"
    assert load_file(file)["tokens"].tolist() == [7, 8, 9]
    assert json.loads(kv("get", "notes/first", "-o", "other", "--json").stdout)["file"] == "other"
    assert kv("put", "other", "brought/one").stdout == "brought/one  3 tokens\n"
    again = kv("put", "other", "brought/one", "--keep-old")
    assert (again.returncode, again.stdout) == (1, "")
    assert "`replace` is 0" in again.stderr
    (tmp_path / "other").write_bytes(b"junk")
    assert "safetensors" in kv("put", "other", "brought/two").stderr
    put = kv("put", "first.safetensors", "brought/two", "--rebuild", "--keep-ms=600000", "--json")
    assert json.loads(put.stdout)["expires_ms"] > 0
    listed = kv("list", "brought/").stdout.splitlines()
    assert [line.split()[:5] for line in listed[1:]] == [
        ["brought/one", "3", "1", "disk", "durable"], ["brought/two", "3", "1", "disk", "durable"],
    ]  # fmt: skip
    assert kv("get", "nothing").returncode == 1
    assert "No such file" in kv("put", "nothing", "a").stderr
    for path in ("notes/first", "notes/second", "brought/one", "brought/two"):
        assert kv("rm", path).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "first.safetensors", "other", "save.wasm",
    ]  # fmt: skip


def test_kv_pages_tokens_and_prefixes_show_what_files_hold(
    server: RunningServer, tmp_path: Path
) -> None:
    def kv(*arguments: str) -> list[str]:
        done = server.symphony("kv", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    save = program(tmp_path, "save", guests.SAVE_WASM)
    assert server.symphony("run", save).returncode == 0
    assert [line.split(None, 2) for line in kv("pages", "notes/first")] == [
        ["PAGES", "TIER", "SHARED"], ["0", "device", "notes/second"],
    ]  # fmt: skip
    (shown,) = json.loads("\n".join(kv("pages", "notes/first", "--json")))
    assert (shown["holders"], shown["files"]) == (1, ["notes/second"])
    document = json.loads("\n".join(kv("tokens", "notes/first", "--first=1", "--json")))
    assert (document["tokens"], document["positions"]) == ([8, 9], [1, 2])
    assert len(kv("tokens", "notes/first", "--limit=2")) == 1
    assert kv("prefixes") == ["no prefix is cached"]
    missing = server.symphony("kv", "pages", "nothing")
    assert (missing.returncode, "no such KV file" in missing.stderr) == (1, True)
    for path in ("notes/first", "notes/second"):
        kv("rm", path)


def test_kv_list_stat_and_rm_handle_named_files(server: RunningServer, tmp_path: Path) -> None:
    save = program(tmp_path, "save", guests.SAVE_WASM)
    assert server.symphony("run", save).returncode == 0
    listed = server.symphony("kv", "list", "notes/")
    assert [line.split()[:2] for line in listed.stdout.splitlines()] == [
        ["PATH", "TOKENS"], ["notes/first", "3"], ["notes/second", "3"],
    ]  # fmt: skip
    stat = server.symphony("kv", "stat", "notes/first", "--json")
    assert json.loads(stat.stdout)["len"] == 3
    assert json.loads(stat.stdout)["tiers"] == {"device": 1, "host": 0, "disk": 0, "tokens": 0}
    words = server.symphony("kv", "stat", "notes/first").stdout
    assert "tiers       1 device\n" in words
    assert "expires_ms  never\n" in words
    for name in ("first", "second"):
        assert server.symphony("kv", "rm", f"notes/{name}").returncode == 0
    assert json.loads(server.symphony("kv", "list", "--json").stdout) == []
    assert server.symphony("kv", "stat", "notes/first").returncode == 1


def test_run_at_ctrl_c_cancels_the_run(server: RunningServer, tmp_path: Path) -> None:
    spin = program(tmp_path, "spin", guests.SPIN_WASM)
    running = subprocess.Popen(
        [*SYMPHONY, "run", spin], env=server.environment, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        runs = json.loads(server.symphony("runs", "--json", "--limit", "1").stdout)
        if runs and runs[0]["program_name"] == "spin" and runs[0]["status"] == "running":
            break
    running.send_signal(signal.SIGINT)
    assert running.wait(SECONDS_MAX) == 130
    (run,) = json.loads(server.symphony("runs", "--json", "--limit", "1").stdout)
    assert run["status"] == "killed"
    assert running.stderr is not None
    running.stderr.close()


def test_doctor_checks_the_server_and_the_model(server: RunningServer) -> None:
    checks = json.loads(server.symphony("doctor", "--json").stdout)
    found = {check["name"]: check for check in checks}
    assert found["server"]["good"]
    assert found["python"]["good"]
    assert found["wasmtime"]["good"]
    missing = server.symphony("doctor", "--model", "/nowhere")
    assert missing.returncode == 1
    assert "MISSING model" in missing.stdout


def test_local_server_is_found_and_its_key_goes_nowhere_else(server: RunningServer) -> None:
    environment = {
        name: value
        for name, value in server.environment.items()
        if not name.startswith("SYMPHONY_")
    }

    def runs(*more: str) -> subprocess.CompletedProcess[str]:
        return symphony("runs", *more, env=environment)

    assert runs().returncode == 0
    other = server.url.replace("127.0.0.1", "localhost")
    refused = runs("--server", other)  # to the command it is another server
    assert refused.returncode == 1
    assert "Authorization" in refused.stderr
    assert runs("--server", other, "--key", server.key).returncode == 0


def test_commands_without_a_server_say_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("SYMPHONY_SERVER", raising=False)
    assert main(["runs"]) == 1
    assert "symphony serve" in capsys.readouterr().err
    assert main(["runs", "--server", "http://127.0.0.1:9"]) == 1
    told = capsys.readouterr().err
    assert told == "symphony: no server at 127.0.0.1:9: Connection refused\n"
    assert main(["runs", "--server", "localhost:8700"]) == 1
    assert "localhost:8700 is not a server's address" in capsys.readouterr().err


def test_wrong_arguments_and_options_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong_lines: tuple[list[str], ...] = (
        [],
        ["nonsense"],
        ["run"],
        ["serve", "--device", "tpu"],
        ["runs", "--limit", "0"],
    )
    for wrong in wrong_lines:
        with pytest.raises(SystemExit) as told:
            main(wrong)
        assert told.value.code == 2
    config = tmp_path / "symphony.toml"
    wrong_files = ("port = 'x'", "ports = 1", "port = 99999", "not toml", "device = 'tpu'",
                   "threads = 0", "pool_bytes = -1", "drain_seconds = nan")  # fmt: skip
    for text in wrong_files:
        config.write_text(text)
        assert main(["serve", "--config", str(config), "--data-dir", str(tmp_path)]) == 1
    capsys.readouterr()
    assert not (tmp_path / "lock").exists()


def test_new_and_build_make_a_program_that_can_be_uploaded(
    server: RunningServer, tmp_path: Path
) -> None:
    made = symphony("new", "answer", "--lang", "rust", "--directory", str(tmp_path))
    project = made.stdout.splitlines()[0]
    assert Path(project).is_dir()
    built = symphony("build", project, timeout=2 * SECONDS_MAX)
    if "no Rust compiler" in built.stderr:
        lacking("rust", "no Rust compiler with the wasm32 target")
    assert built.returncode == 0, built.stderr
    wasm = built.stdout.strip()
    assert Path(wasm).read_bytes().startswith(b"\0asm")
    assert Path(wasm).stat().st_size < 1 << 20
    uploaded = server.symphony("upload", wasm)
    assert uploaded.returncode == 0, uploaded.stderr
