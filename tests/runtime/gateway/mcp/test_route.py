"""The route /mcp loads MCP's library at its first message, and no part of a start does."""

import asyncio
import subprocess
import sys

from symphony import AsyncClient

from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by


def test_start_of_a_gateway_does_not_load_the_library() -> None:
    code = (
        "import sys, symphony_runtime.gateway.__main__\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('mcp', 'mcp_types')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@run_by(with_system, "tmp_path")
async def test_simultaneous_first_messages_are_all_answered(
    system: SystemRig, _: AsyncClient
) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    answers = await asyncio.gather(
        *(system.ask("POST", "/mcp", json=body | {"id": number}) for number in range(4))
    )
    assert [answer.json["id"] for answer in answers] == [0, 1, 2, 3]
    assert all(answer.status == 200 and "result" in answer.json for answer in answers)
