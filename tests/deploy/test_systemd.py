"""deploy/systemd: the unit is one, it is hardened, and a server keeps all promises below it."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from symphony import AsyncClient
from symphony.client.places import read_place
from symphony.client.views import Role
from symphony_runtime.sandboxing.contain import expected

from tests.e2e.programs import HELLO_WASM
from tests.support.requirements import lacking, requires
from tests.support.server.hardened import capability_mask, read_unit

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "symphony.service"
EXPOSURE_MAX = 35  # of 100, as `systemd-analyze security` counts
START = "/opt/symphony/bin/symphony"

pytestmark = requires(
    "systemd", shutil.which("systemd-analyze") is not None, "systemd-analyze is not installed"
)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_unit_has_no_fault(tmp_path: Path) -> None:
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace(START, sys.executable))
    done = analyze("verify", str(here))
    assert (done.returncode, done.stderr) == (0, "")


def test_unit_is_hardened() -> None:
    done = analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", str(UNIT))
    assert done.returncode == 0, done.stdout[-400:]
    worse = analyze("security", "--offline=yes", "--threshold=10", str(UNIT))
    assert worse.returncode != 0  # the threshold is one


def test_unit_waits_as_long_as_the_server_drains() -> None:
    unit = read_unit(UNIT)
    assert unit["Type"] == ["notify"]
    assert unit["KillMode"] == ["mixed"]
    # Runs get drain_seconds (10), the gateway 15 more, workers and kernel 5 each.
    assert int(unit["TimeoutStopSec"][0]) >= 10 + 15 + 5 + 5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start the unit's command with the unit's restrictions, in folders of the test's own."""
    if os.geteuid() != 0:
        lacking("root", "the unit's supervisor is root")
    unit, data = read_unit(UNIT), tmp_path / "data"
    folders = [data, tmp_path / "cache", tmp_path / "run"]
    for folder in folders:
        folder.mkdir(mode=0o700)
    config = tmp_path / "symphony.toml"
    config.write_text("port = 0\ndisk_reserve_bytes = 2097152\n")
    [start] = unit["ExecStart"]
    start = start.removeprefix(START).replace("/etc/symphony/symphony.toml", str(config))
    command = [*start.replace("/var/lib/symphony", str(data)).split(), "--executor", "simulated"]
    own = dict(each.split("=", 1) for each in unit["Environment"])
    own = {
        name: value.replace("/var/lib/symphony", str(data))
        .replace("/var/cache/symphony", str(folders[1]))
        .replace("/run/symphony", str(folders[2]))
        for name, value in own.items()
    }
    log = tmp_path / "log"
    harden = [sys.executable, "-m", "tests.support.server.hardened", str(UNIT)]
    writable = [*map(str, folders), "/tmp"]
    with log.open("wb") as words:
        process = subprocess.Popen(
            [*harden, *writable, "--", sys.executable, "-m", "symphony_runtime.cli", *command],
            cwd=ROOT, stderr=words, env={"PATH": os.environ["PATH"], **own},
        )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (data / "server.json").exists():
        said = log.read_text()
        if "mount:" in said or "unshare" in said:
            lacking("mount", said)
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)
    yield process, data
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, log.read_text()


def test_server_below_the_unit_contains_its_workers_and_runs_programs(
    server: tuple[subprocess.Popen[bytes], Path],
) -> None:
    process, data = server
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
    )
    assert int(status["CapEff"], 16) == capability_mask(read_unit(UNIT))
    assert (status["NoNewPrivs"], status["Seccomp"], status["Umask"]) == ("1", "2", "0077")
    place = read_place(data / "server.json")
    assert place is not None

    async def use() -> tuple[list[Role], str, str]:
        async with AsyncClient(place.url, place.key_file.read_text().strip(), retries=0) as client:
            ready, roles = await client.ready()
            assert ready
            program = await client.programs.upload(HELLO_WASM, "hello")
            run = await client.run(program["id"])
        async with AsyncClient(
            place.url, (data / "admin.key").read_text().strip(), retries=0
        ) as admin:
            return roles, str(run["status"]), await admin.metrics()

    roles, ended, metrics = asyncio.run(use())
    assert ended == "exited"
    worker = next(role for role in roles if role["role"] == "worker-0")
    assert set(worker["containment"]) == set(expected(root=True))
    # The gateway sees the workers' processes, which are other users'.
    assert 'symphony:role_cpu_seconds_total{role="worker-0"}' in metrics
