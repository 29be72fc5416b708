"""What the AssemblyScript SDK has of the outside, under a real gateway, against real servers."""

from pathlib import Path

from symphony_runtime.client import message_bytes

from tests.runtime.gateway.egress.test_http import site
from tests.support.assemblyscript import compiled
from tests.support.gateway.egress import tool_table
from tests.support.gateway.system import SystemRig

EXPECTED = [
    "listed does echo text",
    r'tool true {"list": [-1, 0.5], "n": 7, "text": "\u00e9", "yes": true}',
    "tool true {}",
    "tool ENOENT, there is no such thing",
    "slow ETIMEDOUT, the time is over",
    'http 200 true {"path": "/a", "method": "POST"}',
    "kind application/json",
    "late ETIMEDOUT, the time is over",
    "refused EACCES, not allowed",
    "bad EINVAL, an argument is wrong",
]


async def test_egress_in_assemblyscript_works(tmp_path: Path) -> None:
    wasm = compiled("tests/outside.ts", tmp_path / "outside.wasm", "--exportStart", "_initialize")
    async with site() as there:
        rules = [{"tenants": ["*"], "urls": [there.url], "methods": ["GET", "POST"]}]
        tables = {"t": tool_table(tmp_path)}
        async with (
            SystemRig(tmp_path, tools=tables, http=rules) as system,
            system.client() as client,
        ):
            uploaded = await client.upload(wasm)
            given = {"tool": "t.echo", "url": there.url}
            ended = await client.run(uploaded["id"], given)
    assert (ended["status"], ended["exit_code"]) == ("exited", 0), ended
    assert [message_bytes(m).decode() for m in ended["messages"]] == EXPECTED
    assert there.bodies[0] == b"body"
