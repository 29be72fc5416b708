"""The tool of the evaluation, as an MCP server over stdio: it answers what it is asked, later.

A client of a prompt server calls `look_up` itself, in its own process; programs call it through the
gateway. This file needs no library, so that what a call costs is the gateway's and not the tool's.
"""

import asyncio
import json
import sys
from typing import Any

NAME = "evaluation"
TOOL = "look_up"
_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "delay_ms": {"type": "number"}},
    "required": ["text", "delay_ms"],
}


async def look_up(text: str, delay_ms: float) -> str:
    """Return the text after so many milliseconds."""
    await asyncio.sleep(delay_ms / 1e3)
    return text


async def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request, or None where there is no such method."""
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": NAME, "version": "1"},
        }
    if method == "tools/list":
        about = {"name": TOOL, "description": "Returns a text, later.", "inputSchema": _SCHEMA}
        return {"tools": [about]}
    if method == "tools/call" and params["name"] == TOOL:
        return {"content": [{"type": "text", "text": await look_up(**params["arguments"])}]}
    return {} if method == "ping" else None


async def _serve(message: dict[str, Any]) -> None:
    result = await answer(message["method"], message.get("params", {}))
    told = {"jsonrpc": "2.0", "id": message["id"]}
    if result is None:
        told["error"] = {"code": -32601, "message": "there is no such method or tool"}
    else:
        told["result"] = result
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Serve until the input ends."""
    lines = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    serving = set[asyncio.Task[None]]()
    while line := await lines.readline():
        message = json.loads(line)
        if "id" in message:  # others are notifications
            task = asyncio.create_task(_serve(message))
            serving.add(task)
            task.add_done_callback(serving.discard)


if __name__ == "__main__":
    asyncio.run(main())
