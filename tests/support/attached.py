"""Attached programs against a test's server."""

import subprocess
import sys
from typing import Any

from symphony import attach

from tests.support.server.server import RunningServer


def attached(server: RunningServer, run: str | None = None, **options: Any) -> attach:
    """Return what opens a run at the server."""
    return attach(run, server=server.url, key=server.key, **options)


def client_process(server: RunningServer, program: str) -> "subprocess.Popen[str]":
    """Start a Python process that finds this server; its lines are on `stdout`."""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=server.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
