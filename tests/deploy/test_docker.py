"""deploy/docker: the Dockerfile is linted, and its paths and options are the repository's."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.server.server import symphony

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "docker"
TEXT = (FOLDER / "Dockerfile").read_text()


def test_dockerfile_has_no_finding() -> None:
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent) or "hadolint"
    command = [hadolint, "--no-color", "--failure-threshold", "style"]
    done = subprocess.run(
        [*command, str(FOLDER / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    worse = TEXT.replace("--no-install-recommends ", "")
    found = subprocess.run(
        [*command, "-"], input=worse, capture_output=True, text=True, check=False
    )
    assert "DL3015" in found.stdout


def test_image_is_given_nothing_but_the_wheel_and_its_versions() -> None:
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    [copied] = re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.MULTILINE)
    assert "*" in ignored
    assert set(copied.split()) == kept == {"constraints.txt", "dist/*.whl"}


def test_command_of_the_image_is_one_that_symphony_takes(tmp_path: Path) -> None:
    [words] = re.findall(r"^CMD (\[.*?\])", TEXT.replace("\\\n", ""), re.MULTILINE | re.DOTALL)
    command = [part.replace("/var/lib/symphony", str(tmp_path)) for part in json.loads(words)]
    done = symphony(*command, "--model", str(tmp_path / "nowhere"))
    assert done.returncode != 0
    assert "nowhere" in done.stderr  # all other options were taken
    assert "usage:" not in done.stderr


def test_image_does_not_run_as_root() -> None:
    assert re.findall(r"^USER (.*)$", TEXT, re.MULTILINE) == ["10001:10001"]
    values = (ROOT / "deploy" / "helm" / "symphony" / "templates" / "statefulset.yaml").read_text()
    assert "runAsUser: 10001" in values
