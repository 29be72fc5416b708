"""The check of models, as the kernel does it before it loads one."""

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.executor.refusals import MEMORY_KIB_MAX, SECONDS_MAX, Check

CHECKER = """
import json, resource, sys, time
from pathlib import Path
from symphony_kernel.executor.models.checking import check_model
from symphony_kernel.executor.models.file_reader import CheckpointError
for line in sys.stdin:
    began, words = time.monotonic(), ""
    try:
        check_model(Path(json.loads(line)), "auto")
    except CheckpointError as error:
        words = str(error)
    assert "torch" not in sys.modules
    took = time.monotonic() - began
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps([words, took, memory]), flush=True)
"""


@pytest.fixture(scope="session")
def check() -> Iterator[Check]:
    """Check a folder in a small process: its children's peak memory begins with its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHECKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    sending, answers = process.stdin, process.stdout

    def sentence(folder: Path) -> str:
        sending.write(json.dumps(str(folder)).encode() + b"\n")
        sending.flush()
        assert select.select([answers], [], [], SECONDS_MAX)[0], "it does not end"
        words, took, memory = json.loads(answers.readline())
        print(f"{took:.2f} s, {memory >> 10} MiB at most so far: {words}")
        assert memory < MEMORY_KIB_MAX
        assert len(str(words).splitlines()) <= 1
        assert len(words) < 600
        return str(words)

    try:
        yield sentence
    finally:
        process.kill()
        process.communicate()
