"""The console's files: what ships is what `console/` builds, and it loads from this server only."""

import json
import re
import subprocess
from pathlib import Path

import aiohttp
import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.console import pages

from tests.support.gateway.system import SystemRig, with_system
from tests.support.pages import ROOT
from tests.support.requirements import requires
from tests.support.run_by import run_by

FILES = Path(pages.__file__).parent / "files"
CONSOLE = ROOT / "console"
built = requires(
    "console", (CONSOLE / "node_modules").is_dir(), "`make console` has not installed its bundler"
)


@built
def test_shipped_files_are_what_the_sources_build(tmp_path: Path) -> None:
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=CONSOLE, check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made.keys() == {path.name for path in FILES.iterdir()}
    for name, data in made.items():
        assert (FILES / name).read_bytes() == data, f"{name}: run `make console`, and commit"


@built
def test_sources_have_no_type_errors() -> None:
    done = subprocess.run(
        ["npm", "run", "--silent", "check"],
        cwd=CONSOLE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_each_shipped_file_is_served_and_none_names_another_host() -> None:
    assert {path.name for path in FILES.iterdir()} <= pages.FILES.keys()
    for path in FILES.iterdir():
        hosts = set(re.findall(r"https?://([a-z0-9.-]+)", path.read_text()))
        # Names of XML's namespaces, which nothing loads.
        assert hosts <= {"www.w3.org"}, (path.name, hosts)


def test_dependencies_are_exact_and_no_lock_names_a_registry() -> None:
    package = json.loads((CONSOLE / "package.json").read_text())
    versions = {**package["dependencies"], **package["devDependencies"]}
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions.values())
    assert "resolved" not in (CONSOLE / "package-lock.json").read_text()


@run_by(with_system, "tmp_path")
async def test_page_and_files_come_without_a_key_under_a_strict_policy(
    system: SystemRig, client: AsyncClient
) -> None:
    del client
    async with aiohttp.ClientSession(system.url) as session:
        for path, content in (
            ("/", "text/html"), ("/console/console.js", "text/javascript"),
            ("/console/console.css", "text/css"), ("/console/index.html", "text/html"),
        ):  # fmt: skip
            async with session.get(path) as answer:
                assert (answer.status, answer.content_type) == (200, content)
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "frame-ancestors 'none'" in policy
                assert "unsafe" not in policy
                assert await answer.read()
        for path in ("/console/pages.py", "/console/..%2fpages.py", "/console/", "/console/x"):
            async with session.get(path) as answer:
                assert answer.status == 404


@pytest.mark.parametrize("name", ["console.js", "console.css"])
def test_index_loads_the_files(name: str) -> None:
    assert f'"console/{name}"' in (FILES / "index.html").read_text()
