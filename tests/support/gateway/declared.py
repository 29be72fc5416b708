"""Programs with manifests, and the official client of MCP for a server with them as tools."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from symphony_runtime.compiler.manifest import with_manifest

from tests.e2e import programs as guests
from tests.support.worker.guests import call, data, drop, main

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
NUMBERS = {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "number"}}}
# Sends its input back and ends well.
MIRROR_WASM = guests.wasm(
    main(f"{drop('send', 100, call('input_read', 100, 60000))} (i32.const 0)")
)


def declared(wasm: bytes, **manifest: Any) -> bytes:
    return with_manifest(wasm, json.dumps(manifest).encode())


def sender(*messages: bytes, code: int = 0) -> bytes:
    """Return a program that sends these messages."""
    at, sends, place = 0, "", ""
    for message in messages:
        sends += drop("send", at, len(message))
        place += data(at, message)
        at += len(message)
    return guests.wasm(main(f"{sends} (i32.const {code})", place))


@contextlib.asynccontextmanager
async def mcp_client(url: str, key: str, mode: Any = "auto") -> AsyncIterator[Client]:
    """Connect the official client; `mode` is a version without `initialize`, "legacy" or "auto"."""
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode=mode, cache=None) as client:
            yield client


def texts(content: Iterable[Any]) -> str:
    return "".join(block.text for block in content)
