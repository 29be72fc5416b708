"""Egress and tools of real processes; each test has a server of its own, which it may kill."""

import json
import os
import signal
import tomllib
from pathlib import Path
from typing import Any

from symphony import message_bytes
from symphony_runtime.cli.projects import build
from symphony_runtime.config.serve import read_options

from tests.runtime.gateway.egress.test_http import site
from tests.support.examples import EXAMPLES
from tests.support.gateway.egress import calls_of, finish, start, tool_table
from tests.support.server.server import (
    RunningServer,
    descendants,
    running_server,
    still_alive,
)
from tests.support.waiting import wait_until


def toml(tools: dict[str, Any], url: str) -> str:
    lines = ["[tools.t]"]
    for key, value in tools.items():
        if isinstance(value, dict):
            pairs = ", ".join(f"{name} = {json.dumps(text)}" for name, text in value.items())
            lines.append(f"{key} = {{{pairs}}}")
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    lines += ["[[http]]", 'tenants = ["default"]', f"urls = [{json.dumps(url)}]"]
    return "\n".join(lines)


SLEEP = {"name": "t.sleep", "arguments": {"seconds": 600}}


async def test_egress_of_real_processes_survives_a_dead_gateway(tmp_path: Path) -> None:
    """A URL of the allow list; a gateway that dies during a call: the run fails, and the call is
    not made again; the tool server goes with its gateway, and the next one has another.
    """

    async def read_a_page(server: RunningServer, url: str) -> None:
        wasm = build(EXAMPLES / "read_api")
        given = {"prompt": "def f():", "url": f"{url}/api/{{name}}", "force": ["a b"],
                 "max_tokens": 4, "force_after": 2}  # fmt: skip
        async with server.client() as client:
            program = await client.programs.upload(wasm.read_bytes())
            result = await client.run(program["id"], given)
            assert result["exit_code"] == 0, result
            found = json.loads(message_bytes(result["messages"][1]))["found"]
            assert json.loads(found) == {"path": "/api/a%20b", "method": "GET"}

    async def lose_the_gateway(server: RunningServer) -> None:
        gateway = (await server.pids())["gateway"]
        tools = descendants(gateway)
        async with server.client() as client:
            run = await start(client, "tool", SLEEP)
            await wait_until(lambda: "call sleep" in calls_of(tmp_path))
        os.kill(gateway, signal.SIGKILL)
        await server.wait_for_another("gateway", gateway)
        async with server.client() as client:
            ended = await client.runs.get(run)
            # It had its ticket, and heard no more.
            assert (ended["status"], len(ended["messages"])) == ("failed", 3)
            assert "gateway died" in ended["reason"]
            echo = await finish(client, await start(client, "tool", {"name": "t.echo"}))
            assert echo.value == {"ok": True, "content": "{}"}
        assert calls_of(tmp_path).count("call sleep") == 1
        assert calls_of(tmp_path).count("start") == 2
        assert not still_alive(tools)

    async with site() as there:
        config = tmp_path / "symphony.toml"
        config.write_text(toml(tool_table(tmp_path), f"{there.url}/api/"))
        with running_server(tmp_path / "data", "--config", str(config), executor="torch") as server:
            await read_a_page(server, there.url)
            await lose_the_gateway(server)
            below = descendants(server.process.pid)
            assert server.stop() == 0
            assert not still_alive(below)


def test_example_configuration_is_valid() -> None:
    """It names the server that the tests start, with the first `python` there is."""
    options = read_options(EXAMPLES / "symphony.toml", {})
    table: dict[str, Any] = tomllib.loads((EXAMPLES / "symphony.toml").read_text())
    server = options.tools["example"]
    assert server["tenants"] == ["default"]
    assert Path(server["directory"]) == EXAMPLES
    assert server["command"] == table["tools"]["example"]["command"] == ["python", "tool_server.py"]
    assert (EXAMPLES / "tool_server.py").exists()
