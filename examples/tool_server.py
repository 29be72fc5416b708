"""The tools of the examples: an MCP server, which the gateway starts (see symphony.toml here).

    python examples/tool_server.py [--delay-ms 20]

`search` looks something up in a handful of notes, `signature` says how a function of Python's
standard library is called. Any MCP server will do in its place.
"""

import argparse
import asyncio
import inspect
import pydoc
import re

from mcp.server.mcpserver import MCPServer

NOTES = {
    "symphony": "Symphony is a server that runs programs beside a language model.",
    "lip": "A LIP is a program in WebAssembly that owns its generation loop and its KV files.",
    "kv": "A KV file holds tokens with their keys and values; a fork of it shares its pages.",
    "react": "ReAct lets a model think, act and observe in turns (Yao et al., 2022).",
    "ghent": "Ghent is a city in Flanders, where the Lys meets the Scheldt.",
    "lys": "The Lys rises in Lisbourg and is 202 km long.",
}

server = MCPServer("example")
delay_seconds = 0.0


@server.tool()
async def search(query: str) -> str:
    """Look something up: the note that shares most words with the query."""
    await asyncio.sleep(delay_seconds)
    wanted = set(re.findall(r"\w+", query.lower()))
    found = {name: len(wanted & set(re.findall(r"\w+", f"{name} {NOTES[name]}".lower())))
             for name in NOTES}  # fmt: skip
    best = max(found, key=lambda name: found[name])
    return NOTES[best] if found[best] else "Nothing is known of it."


@server.tool()
async def signature(name: str) -> str:
    """Say how a function of the standard library is called, such as `json.dumps`."""
    await asyncio.sleep(delay_seconds)
    if not re.fullmatch(r"[A-Za-z_][\w.]{0,60}", name) or "__" in name:
        return f"there is no {name}"
    found = pydoc.locate(name)
    if not callable(found):
        return f"there is no {name}"
    try:
        return f"{name}{inspect.signature(found)}"
    except (TypeError, ValueError):
        return f"{name}(...)"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="how long each call takes")
    delay_seconds = parser.parse_args().delay_ms / 1000
    server.run()
