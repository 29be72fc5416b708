"""Versions of programs as a user meets them: the command line, several runs, a restart."""

import json
from pathlib import Path

import pytest

from tests.e2e import programs as guests
from tests.support.server.server import RunningServer, running_server


def file(tmp_path: Path, wasm: bytes) -> str:
    path = tmp_path / "greeter.wasm"
    path.write_bytes(wasm)
    return str(path)


def listed(server: RunningServer, name: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(
        server.symphony("programs", "versions", name, "--json").stdout
    )
    return found


def test_commands_list_versions_and_roll_back(server: RunningServer, tmp_path: Path) -> None:
    own = b"\x00\x05\x04mine"  # a custom section: other tests run the same programs, and runs count
    for wasm in (guests.ECHO_WASM + own, guests.HELLO_WASM + own):
        assert server.symphony("upload", file(tmp_path, wasm)).returncode == 0
    new, old = (str(each["id"]) for each in listed(server, "greeter"))
    assert server.symphony("run", f"greeter@{old[7:19]}", "--input", "hi").stdout == "hi"
    table = server.symphony("programs", "versions", "greeter").stdout.splitlines()
    assert table[0].split() == ["VERSION", "NOW", "BYTES", "UPLOADED", "USED", "RUNS", "ERRORS"]
    assert table[1].split()[:2] == [new[7:19], "*"]
    assert table[2].split()[-2:] == ["1", "1"], "it ended with exit code 7"
    rolled = server.symphony("rollback", "greeter")
    assert (rolled.returncode, rolled.stdout) == (0, f"greeter@{old[7:19]}\n")
    assert server.symphony("run", "greeter", "--input", "hi").stdout == "hi"
    none = server.symphony("rollback", "greeter")
    assert (none.returncode, none.stdout) == (1, "")
    assert none.stderr == (
        "symphony: greeter has no version before the one that it points at"
        " (`symphony programs versions` lists them)\n"
    )
    assert server.symphony("rollback", "greeter", new[7:15]).stdout == f"greeter@{new[7:19]}\n"
    assert server.symphony("alias", "stable", f"greeter@{old[7:15]}").returncode == 0
    assert server.symphony("run", "stable", "--input", "hi").stdout == "hi"


def test_commands_delete_versions_and_names(server: RunningServer, tmp_path: Path) -> None:
    for wasm in (guests.PARROT_WASM, guests.SPIN_WASM, guests.TRAP_WASM):
        server.symphony("upload", file(tmp_path, wasm), "--name", "going")
    now, _, first = (str(each["id"])[7:] for each in listed(server, "going"))
    refused = server.symphony("programs", "rm", f"going@{now}")
    assert (refused.returncode, "point it at another one first" in refused.stderr) == (1, True)
    assert server.symphony("programs", "rm", f"going@{first[:12]}").returncode == 0
    assert len(listed(server, "going")) == 2
    assert server.symphony("programs", "rm", "going", "--all").returncode == 0
    gone = server.symphony("programs", "versions", "going")
    assert (gone.returncode, "there is no such program: 'going'" in gone.stderr) == (1, True)


@pytest.mark.slow
async def test_versions_and_counts_outlive_the_server(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        async with server.client() as client:
            old = (await client.programs.upload(guests.TRAP_WASM, "it"))["id"]
            new = (await client.programs.upload(guests.HELLO_WASM, "it"))["id"]
            await client.programs.rollback("it")
            await client.run("it")
    with running_server(tmp_path) as server:
        async with server.client() as client:
            found = [(each["id"], each["current"], each["runs"], each["errors"])
                     for each in await client.programs.versions("it")]  # fmt: skip
            assert found == [(new, False, 0, 0), (old, True, 1, 1)]
            assert (await client.run(f"it@{new}"))["exit_code"] == 0
