"""Errors of the command line: they name what was wrong, what there is, and the command."""

from pathlib import Path

import pytest
from symphony_runtime.cli.main import main

from tests.e2e import programs as guests
from tests.support.server.server import RunningServer


@pytest.mark.parametrize(
    ("line", "usage", "words"),
    [
        (["serve", "--prot", "1"], "symphony serve", "no option --prot; did you mean --port"),
        (["runs", "--liv=1"], "symphony runs", "--liv"),
        (["runs", "--alive"], "symphony runs", "there is no option --alive; did you mean --live?"),
        (["runs", "--zzz"], "symphony runs", "there is no option --zzz"),
        (["runs", "more"], "symphony runs", "one argument too many: more"),
        (["kv", "stta", "x"], "symphony kv", "there is no 'stta'; did you mean stat"),
        (["rnus"], "symphony", "there is no 'rnus'; did you mean runs"),
        (["xyzzy"], "symphony", "there is no 'xyzzy': there are serve, run, upload"),
        (["admin", "tenants", "set", "a", "--wieght", "2"], "symphony admin tenants set",
         "did you mean --weight?"),
        (["serve", "--port", "abc"], "symphony serve", "--port: must be an integer, 'abc' is none"),
        (["serve", "--drain-seconds", "x"], "symphony serve", "must be a number, 'x' is none"),
        (["run"], "symphony run", "FILE.wasm|NAME"),
    ],
)  # fmt: skip
def test_wrong_command_line_shows_its_commands_usage_and_near_names(
    capsys: pytest.CaptureFixture[str], line: list[str], usage: str, words: str
) -> None:
    with pytest.raises(SystemExit) as told:
        main(line)
    assert told.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"usage: {usage} ")
    assert words in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", "no option is called 'prot'; did you mean port?"),
        ("zzz = 1", "no option is called 'zzz'; there are model, host, port, "),
        ("port = 'abc'", "port must be an integer from 0 to 65535; it is 'abc'"),
        ("port = 70000", "port must be an integer from 0 to 65535; it is 70000"),
        ("device = 'tpu'", "device must be one of auto, cpu, cuda; it is 'tpu'"),
        ("journal = 'no'", "journal must be true or false; it is 'no'"),
    ],
)
def test_wrong_option_in_the_file_names_its_value_and_near_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str
) -> None:
    config = tmp_path / "symphony.toml"
    config.write_text(text)
    assert main(["serve", "--config", str(config), "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"symphony: {config}: {words}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["run", "nothing"], "no such program: 'nothing' (`symphony programs` lists them; a file"),
        (["logs", "run_x"], "there is no such run: 'run_x' (`symphony runs` lists them)"),
        (["trace", "run_x"], "there is no such run: 'run_x'"),
        (["cancel", "run_x"], "there is no such run: 'run_x'"),
        (["kv", "stat", "a/b"], "there is no such KV file: 'a/b' (`symphony kv list` lists them)"),
        (["admin", "tenants", "show", "x"], "there is no such tenant: 'x' (`symphony admin ten"),
        (["admin", "keys", "revoke", "k", "--tenant", "default"], "there is no such key: 'k'"),
        (["admin", "tenants", "set", "default", "--quota", "tokens_per_minut=1"],
         "tokens_per_minute"),
    ],
)  # fmt: skip
def test_missing_thing_is_named_with_a_remedy(
    server: RunningServer, line: list[str], words: str
) -> None:
    admin = {"SYMPHONY_ADMIN_KEY": server.admin_key}
    done = server.symphony(*line, environment=admin)
    assert done.returncode == 1
    assert words in done.stderr


def test_long_name_of_a_missing_thing_is_cut(server: RunningServer) -> None:
    done = server.symphony("run", "x" * 2_000)
    assert f"'{'x' * 100}...'" in done.stderr
    assert len(done.stderr) < 400


def test_file_that_is_no_kv_file_is_called_so(server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes, which are no tensors")
    done = server.symphony("kv", "put", str(tmp_path / "notes.txt"), "a/b")
    assert done.returncode == 1
    assert "it is no safetensors file: a header would have" in done.stderr


def test_input_that_looks_like_json_and_is_none_says_where(
    server: RunningServer, tmp_path: Path
) -> None:
    echo = tmp_path / "echo.wasm"
    echo.write_bytes(guests.ECHO_WASM)
    done = server.symphony("run", str(echo), "--input", '{"a": tru}')
    assert done.stdout == '{"a": tru}'
    assert "is no JSON: Expecting value: line 1 column 7" in done.stderr
    assert server.symphony("run", str(echo), "--input", "plain").stderr == ""


def test_deletion_of_a_tenant_that_has_something_names_the_way(
    server: RunningServer, tmp_path: Path
) -> None:
    admin = {"SYMPHONY_ADMIN_KEY": server.admin_key}
    assert server.symphony("admin", "tenants", "create", "full", environment=admin).returncode == 0
    key = server.symphony("admin", "keys", "create", "--tenant", "full", environment=admin)
    hello = tmp_path / "hello.wasm"
    hello.write_bytes(guests.HELLO_WASM)
    assert server.symphony("upload", str(hello), "--key", key.stdout.strip()).returncode == 0
    refused = server.symphony("admin", "tenants", "delete", "full", environment=admin)
    assert refused.returncode == 1
    assert "the tenant still has programs" in refused.stderr
    assert refused.stderr.endswith("; --everything deletes all that it has\n")
    gone = server.symphony("admin", "tenants", "delete", "full", "--everything", environment=admin)
    assert gone.returncode == 0
