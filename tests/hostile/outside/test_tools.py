"""Tool servers that lie: what they say is data, and at worst their own calls fail in words.

What is elsewhere: servers that die, say too much in a message or a list, never end a line,
compress, redirect, or are away (`tests/runtime/gateway/egress/mcp/test_tools.py`,
`tests/runtime/gateway/egress/mcp/test_remote_tools.py`).
"""

import logging
import sys
from pathlib import Path

import pytest
from symphony_kernel.protocol.errno import Errno

from tests.hostile.outside.lying_server import TOOLS
from tests.support.gateway.egress import ask
from tests.support.gateway.system import SystemRig
from tests.support.server.server import REPOSITORY

SAYS_NOTHING = {"wrong_ids", "never"}  # that would be an answer to this call
ANSWERS = {"honest", "twice", "nul", "flood", "links"}


def table(**environment: str) -> dict[str, object]:
    command = [sys.executable, "-S", "-m", "tests.hostile.outside.lying_server"]
    environment["PYTHONPATH"] = str(REPOSITORY)
    return {"command": command, "tenants": ["*"], "environment": environment}


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as a fault of ours."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


async def test_tool_server_wrong_answers_are_errors_or_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with SystemRig(tmp_path, tools={"t": table()}) as system, system.client() as client:
        for name in TOOLS:
            most_ms = 20_000 if name in ANSWERS else 150
            told = await ask(client, "tool", {"name": f"t.{name}", "timeout_ms": most_ms})
            where = (name, told.errno, told.value, told.words)
            assert "NaN}" not in str(told.value), where
            assert "Infinity}" not in str(told.value), where
            if name in SAYS_NOTHING:
                assert told.errno == Errno.ETIMEDOUT, where
            elif name in ANSWERS:
                assert told.value["ok"], where
            else:
                # Some are answers in the library's eyes; none is a fault of the server.
                assert told.errno in (0, Errno.ETIMEDOUT, Errno.EFBIG), where
        honest = await ask(client, "tool", {"name": "t.honest"})
        assert honest.value == {"ok": True, "content": "honest"}
        outside = system.gateway.services.runs.egress.statistics()
        assert outside["calls"] == 0
    assert faults(caplog) == []


@pytest.mark.parametrize("how", ["circle", "names", "schemas"])
async def test_tool_server_wrong_lists_leave_the_good_tools(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    tools = {"t": table(LIST=how), "other": table()}
    async with SystemRig(tmp_path, tools=tools) as system, system.client() as client:
        listed = (await ask(client, "tools")).value
        names = [tool["name"] for tool in listed]
        assert {"t.honest", "other.honest"} <= set(names)
        assert len(names) == len(set(names))
        assert all(name.isprintable() and len(name) <= 256 for name in names)
        honest = await ask(client, "tool", {"name": "t.honest"})
        assert honest.value == {"ok": True, "content": "honest"}
    assert faults(caplog) == []
