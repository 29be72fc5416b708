"""Kernels of compiled modules: they do what interpreted ones do, and go on where those died."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from symphony_kernel.compiled.build import built_library
from symphony_kernel.platform.build_cache import LibraryUnavailable
from symphony_kernel.platform.toolchain import CompileError

from tests.support.requirements import lacking
from tests.support.server.deaths import crowd, difference, kill_role, upload
from tests.support.server.server import REPOSITORY, running_server

SECONDS_MAX = 280
TESTS = ("tests/kernel/journal/test_snapshot.py", "tests/kernel/journal/test_recovery.py")
COMPILED = """
import sys
from pathlib import Path
from symphony_kernel.compiled.loading import use_library

use_library(Path(sys.argv[1]))
from symphony_kernel.scheduler.scheduler import Scheduler

assert hasattr(Scheduler, "__mypyc_attrs__")
import pytest

sys.exit(pytest.main(["-x", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


@pytest.fixture(scope="module")
def library() -> Path:
    """Return the compiled library of these sources."""
    said: list[str] = []
    try:
        return built_library(said.append)
    except CompileError:
        raise
    except LibraryUnavailable as error:
        lacking("compiled", f"the modules cannot be compiled here: {error}")


@pytest.mark.slow
def test_compiled_kernel_runs_random_programs_and_deaths(library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, str(library), "-m", "not interpreted", *TESTS],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
async def test_compiled_and_plain_kernels_continue_from_each_others_journal(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "symphony"
    cache.mkdir(mode=0o700)
    for path in (library, library.with_suffix(".sha256")):
        shutil.copy(path, cache)
    there, away = cache / library.name, cache / "away"

    with running_server(tmp_path / "data") as server:
        async with server.client() as client:
            await upload(client)
            assert (await server.counters())["compiled"] is True
            wanted = await crowd(client, 8, 120)
            for compiled in (False, True, False):
                (away if compiled else there).rename(there if compiled else away)
                runs = asyncio.create_task(crowd(client, 8, 120))
                while not (await server.counters())["instances"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await kill_role(server, "kernel")
                counters = await server.counters()
                assert counters["compiled"] is compiled
                assert counters["journal_recovered_records"]
                found = await runs
                differences = [difference(*pair) for pair in zip(wanted, found, strict=True)]
                assert [words for words in differences if words] == []
            assert not (await server.wait_until_idle())["instances"]
        assert "its modules are compiled" in server.log.read_text()
