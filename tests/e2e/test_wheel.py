"""The wheel: what it brings, and that it serves in an environment that has nothing else."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from symphony_kernel.compiled.build import built_library
from symphony_kernel.executor.models.quantization import quantize
from symphony_kernel.executor.native.build import LEVELS, shipped_name
from symphony_kernel.executor.native.library import Library
from symphony_kernel.platform.build_cache import LibraryUnavailable

from tests.e2e.programs import HELLO_WASM
from tests.support.executor.native_kernels import Float32, product, rounded_inputs
from tests.support.requirements import lacking

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 600
# Tests, and the sources of the Wasm modules that the packages have.
LEFT_OUT = re.compile(
    r"/(program|tests|guest_sdk/javascript|guest_sdk/python)/|hostcalls\.c$|\.gitignore$"
)


def tracked(*folders: str) -> set[str]:
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", *folders]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        lacking("git", f"git lists no files here: {error}")
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheels and the source distributions, and return their folder."""
    try:
        built_library(lambda _: None)
    except LibraryUnavailable as error:
        lacking("compiled", f"the wheel cannot be built here: {error}")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, str(ROOT / "tools" / "build_wheel.py"), str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def wheel_of(dist: Path, name: str = "symphony_lip") -> Path:
    [wheel] = dist.glob(f"{name}-*.whl")
    return wheel


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
def test_wheel_brings_everything_compiled_and_names_no_folder_of_its_machine(dist: Path) -> None:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.search(rf"-{python}-{python}-manylinux_2_\d+_\w+\.whl$", wheel_of(dist).name)
    folders = {str(ROOT), str(Path.home()), tempfile.gettempdir() + "/", "symphony-wheel-"}
    with zipfile.ZipFile(wheel_of(dist)) as wheel:
        assert wheel.testzip() is None
        names = wheel.namelist()
        shipped = {n.partition("/shipped/")[2] for n in names if "/shipped/" in n} - {""}
        libraries = {shipped_name(level) for level in LEVELS} | {built_library(print).name}
        assert shipped == libraries | {f"{name[:-3]}.sha256" for name in libraries}
        assert any("/_hostcalls." in name for name in names)
        found = {
            (name, folder)
            for name in names
            if name.endswith((".so", "METADATA", "RECORD"))
            for folder in folders
            if folder.encode() in wheel.read(name)
        }
    assert found == set()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
def test_kernels_of_each_level_that_runs_here_multiply(dist: Path, tmp_path: Path) -> None:
    """Also those of older processors, which this one takes no library of."""
    features = set(re.findall(r"\S+", Path("/proc/cpuinfo").read_text(encoding="utf-8")))
    names = [shipped_name(level) for level in LEVELS if level.needed <= features]
    if not names:
        lacking("native", "this processor has none of the levels' features")
    with zipfile.ZipFile(wheel_of(dist)) as wheel:
        for packed in wheel.namelist():
            if packed.rpartition("/")[2] in names:
                (tmp_path / Path(packed).name).write_bytes(wheel.read(packed))
    random = np.random.default_rng(0)

    def numbers(rows: int, columns: int) -> Float32:
        return random.standard_normal((rows, columns)).astype(np.float32)

    inputs, weights = numbers(23, 200), numbers(70, 200)
    halves = (weights.view(np.uint32) >> 16).astype(np.uint16)
    for library in (Library(tmp_path / name) for name in names):
        for bits in (4, 8):
            matrix = quantize(torch.from_numpy(weights), bits, 32)
            exact = rounded_inputs(inputs, 32) @ matrix.dequantize(torch.float64).numpy().T
            np.testing.assert_allclose(product(library, inputs, matrix), exact, 1e-5, 1e-4)
        exact = inputs.astype(np.float64) @ weights.T
        np.testing.assert_allclose(product(library, inputs, weights), exact, 1e-5, 1e-4)
        wide = (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        found = product(library, halves[:23], halves, wide=True)
        np.testing.assert_allclose(found, wide[:23] @ wide.T, 1e-5, 1e-4)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
def test_wheel_and_source_distribution_have_each_file_of_the_packages(dist: Path) -> None:
    wanted = {name for name in tracked("kernel", "runtime") if not LEFT_OUT.search(f"/{name}")}
    packed = {name.partition("/")[2] for name in wanted}
    assert len(packed) > 300
    sdks = {name for name in tracked("guest_sdk") if not LEFT_OUT.search(f"/{name}")}
    packed |= {f"symphony_runtime/cli/{name}" for name in sdks}
    with zipfile.ZipFile(wheel_of(dist)) as wheel:
        assert packed - set(wheel.namelist()) == set()
        sources = {n for n in wheel.namelist() if n.startswith("symphony_") and n.endswith(".py")}
        assert {name for name in sources if name not in packed} == set()
    [source] = dist.glob("symphony_lip-*.tar.gz")
    with tarfile.open(source) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    assert wanted | {"runtime/symphony_runtime/engine/hostcalls.c"} <= there
    assert [name for name in there if name.endswith((".so", ".pyc"))] == []


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
def test_wheel_of_the_client_has_its_package_and_runs_anywhere(dist: Path) -> None:
    wheel = wheel_of(dist, "symphony_client")
    assert wheel.name.endswith("-py3-none-any.whl")
    wanted = {name for name in tracked("client") if name.startswith("client/symphony/")}
    packed = {name.removeprefix("client/") for name in wanted}
    assert {"symphony/__init__.py", "symphony/py.typed"} <= packed
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name for name in names if ".dist-info/" not in name} == packed
    assert any(name.endswith("/LICENSE") for name in names)
    [source] = dist.glob("symphony_client-*.tar.gz")
    with tarfile.open(source) as archive_of_sources:
        there = {name.partition("/")[2] for name in archive_of_sources.getnames()}
    assert packed | {"LICENSE", "NOTICE", "README.md", "pyproject.toml"} <= there


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install both wheels with what they depend on; return the new environment's `bin`."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    # This environment's pip for the new one, and no bytecode of modules that nothing imports.
    command = [
        sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install",
        "--quiet", "--no-compile", "--constraint", str(ROOT / "constraints.txt"),
        *map(str, dist.glob("*.whl")),
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    if done.returncode:
        lacking("packages", f"pip installs nothing here: {done.stderr.strip()[-300:]}")
    return place / "bin"


class Installed:
    """Commands of the fresh environment; nothing else is on their path, and no compiler."""

    def __init__(self, place: Path, home: Path) -> None:
        self.home = home
        self.place = place
        self.environment = {"HOME": str(home), "PATH": str(place), "LANG": "C.UTF-8"}

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self.place / arguments[0]), *arguments[1:]], cwd=self.home, env=self.environment,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def machine(installed: Path, tmp_path: Path) -> Iterator[Installed]:
    """Yield a user of the new environment, with a server that serves the tiny model."""
    user = Installed(installed, tmp_path)
    assert [shutil.which(name, path=str(installed)) for name in ("cc", "gcc", "c++")] == [None] * 3
    log = tmp_path / "log"
    command = [str(installed / "symphony"), "serve", "--port", "0", "--data-dir", "data"]
    with log.open("wb") as words:
        process = subprocess.Popen(command, cwd=tmp_path, env=user.environment, stderr=words)
    deadline = time.monotonic() + 120
    while "serving tiny on" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    yield user
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, log.read_text()


def ask(machine: Installed, path: str, body: object = None) -> tuple[str, str]:
    """Make a request of the server; return the type and the text of the answer."""
    url = json.loads((machine.home / "data" / "server.json").read_text())["url"]
    key = (machine.home / "data" / "default.key").read_text().strip()
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url + path, data, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.headers["Content-Type"], response.read().decode()


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS_MAX)
def test_wheel_in_a_fresh_environment_serves_without_a_compiler(machine: Installed) -> None:
    code = (
        "import sys, symphony_kernel, symphony_runtime\n"
        "print(symphony_kernel.__file__, symphony_runtime.__file__, *sys.path)"
    )
    found = machine.run("python", "-c", code).split()
    prefix = str(machine.place.parent)
    assert all(path.startswith(prefix) for path in found[:2]), found
    assert not any(path.startswith(str(ROOT)) for path in found), found

    # Compiled parts are the wheel's: nothing was compiled here.
    shipped = str(machine.place.parent / "lib")
    assert f"kernel: its modules are compiled: {shipped}" in (machine.home / "log").read_text()
    doctor = {line.split()[1]: line for line in doctor_lines(machine)}
    assert doctor["host"].startswith("ok")
    assert doctor["compiled"].startswith("ok"), doctor["compiled"]
    if "this processor lacks" not in doctor["native"]:
        assert shipped in doctor["native"]

    body = {"model": "tiny", "prompt": "def main(", "max_tokens": 8}
    _, answer = ask(machine, "/v1/completions", body)
    assert json.loads(answer)["usage"]["completion_tokens"] == 8
    # The request waited until the machine code of the shipped program was kept; other folders
    # here are of programs that are still being compiled.
    cache = machine.home / ".cache" / "symphony"
    cached = {path.suffix for path in cache.iterdir() if path.is_file()}
    assert cached == {".cwasm", ".sha256"}, "machine code of shipped programs alone"
    (machine.home / "hello.wasm").write_bytes(HELLO_WASM)
    assert "hello" in machine.run("symphony", "run", "--lines", "hello.wasm")
    kind, page = ask(machine, "/")
    assert kind.startswith("text/html")
    files = re.findall(r'(?:src|href)="(console/[^"]+)"', page)
    assert len(files) == 2
    assert all(len(ask(machine, f"/{path}")[1]) > 1000 for path in files)

    for language in ("rust", "assemblyscript"):
        machine.run("symphony", "new", f"hello-{language}", "--lang", language)
    vendor = machine.home / "hello-rust" / "vendor" / "symphony"
    assert (vendor / "src" / "lib.rs").read_bytes() == (
        ROOT / "guest_sdk" / "rust" / "src" / "lib.rs"
    ).read_bytes()


def doctor_lines(machine: Installed) -> list[str]:
    """Return what `symphony doctor` says; it lacks a compiler of AssemblyScript here."""
    done = subprocess.run(
        [str(machine.place / "symphony"), "doctor"], cwd=machine.home, env=machine.environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.stdout.splitlines()
