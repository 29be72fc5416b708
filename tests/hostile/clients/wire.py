"""HTTP by hand: bytes to a server and what comes back, as no library would send them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from symphony import AsyncClient, ServerError

from tests.e2e.programs import HELLO_WASM, SAVE_WASM
from tests.support.gateway.system import SystemRig
from tests.support.server.server import RunningServer

SECONDS_MAX = 20.0  # for anything that is awaited


@dataclass(frozen=True)
class Reply:
    """An answer; header names are lower-case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes; a server that hung up is no error: its answer is what counts."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            return

    async def reply(self, *, body: bool = True) -> Reply:
        """The next answer, past those of status 1xx; that to a HEAD has no body."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                found = await self._reply(body)
                if found.status >= 200 or found.status == 101:
                    return found

    async def _reply(self, with_body: bool) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
        size = int(headers.get("content-length", "0")) if with_body else 0
        body = await self.reader.readexactly(size)
        return Reply(int(head[0].split(" ")[1]), headers, body)

    async def rest(self) -> bytes:
        """What comes until the server hangs up."""
        async with asyncio.timeout(SECONDS_MAX):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@asynccontextmanager
async def wire(url: str) -> AsyncIterator[Wire]:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=1 << 22)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


def head(line: str, key: str | None = None, *headers: str, host: str = "Host: x") -> bytes:
    """A request's head: its first line, Host, a key, and more headers."""
    lines = [line, *([host] if host else []), *headers]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "".join(f"{each}\r\n" for each in lines).encode("latin-1") + b"\r\n"


def post(path: str, key: str | None, body: bytes, *headers: str) -> bytes:
    size = f"Content-Length: {len(body)}"
    return head(f"POST {path} HTTP/1.1", key, size, *headers) + body


async def talk(client: AsyncClient, messages: int) -> None:
    """Have a run of the program "parrot" repeat this many messages, and end."""
    run = await client.start("parrot")
    for n in range(messages):
        await client.runs.send(run, b"%d" % n)
    await client.runs.send(run, b"", close=True)
    said = [event.message() async for event in client.runs.events(run) if event.kind == "message"]
    assert said == [b"%d" % n for n in range(messages)]


async def fill(server: RunningServer | SystemRig) -> dict[str, str]:
    """Make one of each resource, again if need be; return names, by their places in paths."""
    async with server.client() as client, server.admin() as admin:
        await client.programs.upload(HELLO_WASM, name="hello")
        await client.programs.upload(SAVE_WASM, name="save")
        await client.run("save")
        ended = await client.run("hello", trace=True)
        with contextlib.suppress(ServerError):  # it may not be there, or have all its keys
            await admin.admin.delete_tenant("somebody", everything=True)
        await admin.admin.create_tenant("somebody")
        key = await admin.admin.create_key("somebody", role="tenant")
    models = (await ask(server.url, head("GET /v1/models HTTP/1.1", server.key))).json()["data"]
    return {"program": "hello", "run": ended["id"], "path": "notes/first", "tenant": "somebody",
            "key": key["id"], "model": models[0]["id"]}  # fmt: skip


async def ask(url: str, request: bytes) -> Reply:
    async with wire(url) as connection:
        await connection.send(request)
        return await connection.reply(body=not request.startswith(b"HEAD"))
