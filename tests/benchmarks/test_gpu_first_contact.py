"""What is taken to a GPU machine, and the stages that run there: all but the device."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.gpu.first_contact import bundle
from benchmarks.gpu.first_contact.__main__ import environment, main, parse, stages
from benchmarks.gpu.first_contact.bundle import (
    KERNELS,
    SERVER,
    download_command,
    install,
    pack,
    pinned,
    split,
    unpack,
)
from benchmarks.gpu.first_contact.smoke import check_all
from benchmarks.gpu.first_contact.stages import Command, Stage, fit
from benchmarks.gpu.machine import SERVER_PACKAGES

ROOT = Path(__file__).parents[2]
CALL_SECONDS = 600


# -- The bundle ---------------------------------------------------------------------------------
def test_gathered_packages_have_the_versions_of_the_constraints() -> None:
    text = (ROOT / "constraints.txt").read_text()
    flashinfer = pinned(["flashinfer-python"], text)
    assert flashinfer == ["flashinfer-python==0.6.13"], "what the calls were compared with"
    assert all("==" in each for each in pinned((*KERNELS, *SERVER), text))
    assert pinned(["Prometheus_Client"], "prometheus-client==1.2") == ["Prometheus_Client==1.2"]
    with pytest.raises(ValueError, match="no version of nonsense"):
        pinned(["nonsense"], text)
    extra = (ROOT / "pyproject.toml").read_text()
    for name in ("flashinfer-python", "apache-tvm-ffi"):
        assert f'"{pinned([name], text)[0]}"' in extra, "the extra takes the same"


def test_gathered_packages_are_all_that_the_server_needs() -> None:
    assert set(SERVER_PACKAGES.values()) - {"aiohttp"} == set(SERVER), "aiohttp is there"


def test_downloads_take_wheels_of_every_glibc_and_no_other_torch(tmp_path: Path) -> None:
    alone = download_command(["one==1"], tmp_path, "3.12", None)
    assert "--no-deps" in alone
    platforms = [alone[at + 1] for at, word in enumerate(alone) if word == "--platform"]
    assert {"manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux2014_x86_64"} < set(
        platforms
    )
    with_dependencies = download_command(["two==2"], tmp_path, "3.12", ROOT / "constraints.txt")
    assert "--no-deps" not in with_dependencies
    assert "--constraint" in with_dependencies
    assert with_dependencies[-1] == "two==2"


def test_gathering_leaves_out_what_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pip that makes a file of 10 bytes for each package, and fails for one."""

    class Ended:
        def __init__(self, code: int) -> None:
            self.returncode = code

    def download(command: list[str], check: bool = False) -> Ended:
        folder = Path(command[command.index("--dest") + 1])
        wanted = [word for word in command if "==" in word]
        if "rich" in wanted[0]:
            return Ended(1)
        for package in wanted:
            (folder / f"{package}.whl").write_bytes(bytes(10))
        return Ended(0)

    monkeypatch.setattr(subprocess, "run", download)
    monkeypatch.setattr(bundle, "BUNDLE_BYTES_MAX", 10 * (len(KERNELS) + 4))
    left_out = bundle.gather(tmp_path, ROOT / "constraints.txt")
    assert re.match(r"rich==.*: pip ended with 1", left_out[0])
    assert [each.partition("==")[0] for each in left_out[1:]] == ["uvloop", "cryptography", "mcp"]
    assert bundle.size_of(tmp_path) <= 10 * (len(KERNELS) + 4)


def test_compiled_modules_come_back_where_flashinfer_finds_them(tmp_path: Path) -> None:
    made, brought, site = tmp_path / "jit", tmp_path / "bundle", tmp_path / "site"
    libraries = []
    for name in ("norm", "page"):
        library = made / name / f"{name}.so"
        library.parent.mkdir(parents=True)
        library.write_bytes(name.encode() * 1000)
        libraries.append(library)
    brought.mkdir()
    (site / "flashinfer").mkdir(parents=True)
    pack(libraries, tmp_path / "all.tgz")
    pieces = split(tmp_path / "all.tgz", brought, piece_bytes=100)
    assert len(pieces) > 1
    assert all(piece.stat().st_size <= 100 for piece in pieces)
    assert install(brought, site) == ["compiled kernels: norm, page"], "and no wheels again"
    for name in ("norm", "page"):
        found = site / "flashinfer" / "data" / "aot" / name / f"{name}.so"
        assert found.read_bytes() == name.encode() * 1000
    assert sorted(unpack(brought, site)) == ["norm", "page"]


# -- The stages ---------------------------------------------------------------------------------
def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_stage_tells_what_failed_was_killed_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Stage(
        "some",
        [
            [
                Command("right", python("import os; print(os.environ['WORD'])"), most=20, least=0),
                Command("wrong", python("raise SystemExit(3)"), most=20, least=0),
            ],
            [Command("endless", python("import time; time.sleep(60)"), most=0.3, least=0)],
            [Command("late", python("print('never')"), most=20, least=1000)],
        ],
        seconds=60,
    )
    outcomes = {each.name: each for each in stage.run(tmp_path, {"WORD": "found"})}
    assert outcomes["right"].right
    assert "found" in capsys.readouterr().out
    assert outcomes["wrong"].code == 3
    assert outcomes["endless"].words.startswith("killed at its limit")
    assert outcomes["endless"].seconds < 10
    assert "left out: 5" in outcomes["late"].words or "left out: 60" in outcomes["late"].words
    assert not (tmp_path / "late.log").exists()
    report = stage.report()
    assert "| wrong | 0 | exit code 3 |" in report
    assert "| right | 0 | ok |" in report


def test_stages_fit_their_calls() -> None:
    made = stages(parse(["run", "kernels"]))
    assert list(made) == ["kernels", "parity", "speed", "server", "open"]
    for stage in made.values():
        assert stage.seconds < CALL_SECONDS
        assert all(command.most <= stage.seconds for group in stage.groups for command in group)
    words = [" ".join(command.words) for group in made["kernels"].groups for command in group]
    assert sum("--noconftest -m gpu -o timeout=0" in each for each in words) == 2
    chosen = [each.partition("-k ")[2].partition(" tests/")[0] for each in words if "-k" in each]
    assert chosen[0] == f"not ({chosen[1]})", "each test runs once"


def test_results_are_made_to_fit_what_comes_back(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.log").write_bytes(bytes(number + 1))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "deep.json").write_text("{}")
    (tmp_path / "huge.log").write_bytes(bytes(5000))
    left_out = fit(tmp_path, files_max=8, bytes_max=4096)
    assert left_out == ["huge.log: 0 MiB"]
    there = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(there) <= 8
    assert all(path.parent == tmp_path for path in there)
    with tarfile.open(tmp_path / "others.tgz") as archive:
        assert "results/deep.json" in archive.getnames()
        assert len(archive.getnames()) + len(there) - 1 == 13


def test_commands_of_a_gpu_machine_find_the_site_first(tmp_path: Path) -> None:
    found = environment(tmp_path)
    assert found["PYTHONPATH"].startswith(f"{tmp_path}:")
    assert str(ROOT / "kernel") in found["PYTHONPATH"]
    assert found["FLASHINFER_WORKSPACE_BASE"] == str(tmp_path)


def test_options_of_first_contact_are_checked() -> None:
    assert parse(["gather"]).bundle == ROOT / ".gpu"
    for wrong in (["run"], ["gather", "kernels"], ["run", "nonsense"]):
        with pytest.raises(SystemExit):
            parse(wrong)


def test_each_call_of_the_kernels_agrees_with_torch(capsys: pytest.CaptureFixture[str]) -> None:
    """The smoke test, with the reference in FlashInfer's place."""
    assert check_all("cpu") == 0
    lines = capsys.readouterr().out
    assert lines.count("ok ") == 31
    for name in ("trees", "append, strided", "decodes in a graph, window 20", "gate"):
        assert f"ok  {name}" in lines


def test_build_without_flashinfer_fails_in_words(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="flashinfer"):
        main(["build", "--site", str(tmp_path), "--out", str(tmp_path)])


def test_gpu_tests_import_only_what_the_machine_has() -> None:
    """Such as no PostgreSQL: the conftest of all tests is not loaded there, but may be."""
    source = (ROOT / "tests" / "support" / "gateway" / "postgres.py").read_text()
    assert not re.search(r"^import psycopg", source, re.MULTILINE)
