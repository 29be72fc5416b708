"""A client of the HTTP interface: what the command line, the tests and the benchmarks use.

    async with Client(url, key) as client:
        program = await client.upload(Path("chat.wasm").read_bytes(), name="chat")
        result = await client.run(program["id"], input="Hello")
        async for event in client.stream("chat", input="Hello"):
            ...

JSON objects are given as the server sent them. An error of the server's is a `ServerError` with the
problem document; no server, or one that goes away, is a `ConnectionFailed`.
"""

import asyncio
import base64
import io
import json
import os
import socket
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any
from urllib.parse import quote
from weakref import WeakSet

import aiohttp
from aiohttp.connector import AddrInfoType
from yarl import URL

JsonObject = dict[str, Any]
_PIECE_BYTES = 256 << 10
_CLOSE_PASSES = 100  # of the loop, until a socket that was shut down is closed
_LINE_BYTES_MAX = 8 << 20  # an event's data is one line; a message of 1 MiB may be escaped in it


class ClientError(Exception):
    """What a client may raise."""


class ConnectionFailed(ClientError):  # noqa: N818 - reads as what happened
    """The server cannot be reached, or went away before it had answered."""


class ServerError(ClientError):
    """The server refused. `problem` is its problem document."""

    def __init__(self, status: int, problem: JsonObject, retry_after: float | None) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title") or f"status {status}"))
        self.status = status
        self.problem = problem
        self.retry_after = retry_after  # seconds


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run: `message`, `log`, `status` or `usage`."""

    id: int
    kind: str
    data: JsonObject

    def message(self) -> bytes:
        """Return the bytes of a `message` event."""
        return message_bytes(self.data["message"])


def message_bytes(message: str | Mapping[str, str]) -> bytes:
    """Return the bytes of a message in JSON."""
    return message.encode() if isinstance(message, str) else base64.b64decode(message["base64"])


class Client:
    """A connection to one server with one key. Use it as an asynchronous context manager."""

    def __init__(self, url: str, key: str | None = None, *, connections: int = 0) -> None:
        """`connections` bounds those open at once; 0 does not."""
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._connections = connections
        self._open: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()

    async def __aenter__(self) -> "Client":
        self._open = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=self._connections, socket_factory=self._socket),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            read_bufsize=1 << 16,
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()
        # A body that the server refused before its end is still being written: it is dropped.
        for each in self._sockets:
            if each.fileno() >= 0:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for _ in range(_CLOSE_PASSES):
            if all(each.fileno() < 0 for each in self._sockets):
                return
            await asyncio.sleep(0)

    # -- Server --------------------------------------------------------------------------------
    async def ready(self) -> tuple[bool, list[JsonObject]]:
        """Return whether a run can start, and the server's roles."""
        with _translated():
            async with self._session.get(f"{self.url}/readyz") as response:
                document = json.loads(await response.read())
                return response.status == 200, document.get("roles", [])

    async def openapi(self) -> JsonObject:
        """Return the server's OpenAPI document."""
        return await self._json("GET", "/openapi.json")

    async def statistics(self, *, check: bool = False) -> JsonObject:
        """Return the counters of kernel and gateway (admin key); `check` audits the kernel first.

        A kernel whose audit fails stops: that is a ServerError or a ConnectionFailed.
        """
        return await self._json("GET", "/v1/admin/statistics", {"check": str(int(check))})

    async def metrics(self) -> str:
        """Return what Prometheus would get: text that `prometheus_client.parser` reads."""
        with _translated():
            async with self._session.get(f"{self.url}/metrics") as response:
                await _check(response)
                return (await response.read()).decode()

    # -- Programs ------------------------------------------------------------------------------
    async def upload(self, wasm: bytes, name: str | None = None) -> JsonObject:
        """Upload a program; return its view."""
        query = {"name": name} if name is not None else {}
        return await self._json("POST", "/v1/programs", query, wasm, "application/wasm")

    async def program(self, program: str) -> JsonObject:
        """Return a program's view."""
        return await self._json("GET", f"/v1/programs/{_quoted(program)}")

    async def delete_program(self, program: str) -> None:
        """Forget a program."""
        await self._json("DELETE", f"/v1/programs/{_quoted(program)}")

    def programs(self) -> AsyncIterator[JsonObject]:
        """Give all programs, newest first."""
        return self._pages("/v1/programs")

    # -- Runs ----------------------------------------------------------------------------------
    async def run(self, program: str, input: Any = "", **options: Any) -> JsonObject:  # noqa: A002
        """Run a program to its end; `options` are entry, limits, priority, trace."""
        return await self._start(program, {"input": input, **options}, {})

    async def start(self, program: str, input: Any = "", **options: Any) -> str:  # noqa: A002
        """Start a run; return its id as soon as it has begun."""
        body = {"input": input, **options}
        return str((await self._start(program, body, {"detach": "1"}))["id"])

    async def stream(
        self,
        program: str,
        input: Any = "",  # noqa: A002
        **options: Any,
    ) -> AsyncIterator[Event]:
        """Run a program and give its events."""
        body = _encoded({"input": input, **options, "stream": True})
        path = f"/v1/programs/{_quoted(program)}/runs"
        with _translated():
            async with self._session.post(f"{self.url}{path}", data=body) as response:
                await _check(response)
                async for event in _events(response):
                    yield event

    async def result(self, run: str) -> JsonObject:
        """Return a run with its messages so far."""
        return await self._json("GET", f"/v1/runs/{_quoted(run)}")

    def runs(self) -> AsyncIterator[JsonObject]:
        """Give all runs, newest first."""
        return self._pages("/v1/runs")

    async def trace(self, run: str) -> JsonObject:
        """Return the Chrome trace events of a run that was started with `trace=True`."""
        return await self._json("GET", f"/v1/runs/{_quoted(run)}/trace")

    async def delete_run(self, run: str) -> None:
        """Forget a run that has ended."""
        await self._json("DELETE", f"/v1/runs/{_quoted(run)}")

    async def live_runs(self) -> list[JsonObject]:
        """Return the newest live runs, each with what it holds (`held`)."""
        query = {"live": "1", "limit": "200"}
        runs: list[JsonObject] = (await self._json("GET", "/v1/runs", query))["data"]
        return runs

    async def events(
        self, run: str, after: int = 0, *, follow: bool = True
    ) -> AsyncIterator[Event]:
        """Give a run's events after an id: to the last one, or those that are there now."""
        headers = {"Last-Event-ID": str(after)}
        url = f"{self.url}/v1/runs/{_quoted(run)}/events?follow={int(follow)}"
        with _translated():
            async with self._session.get(url, headers=headers) as response:
                await _check(response)
                async for event in _events(response):
                    yield event

    async def send(self, run: str, message: bytes, *, close: bool = False) -> None:
        """Hand a run a message; `close` ends them (with no message if it is empty)."""
        query = {"close": "1"} if close else {}
        path = f"/v1/runs/{_quoted(run)}/messages"
        await self._json("POST", path, query, message, "application/octet-stream")

    async def cancel(self, run: str) -> JsonObject:
        """End a run; return its view."""
        return await self._json("POST", f"/v1/runs/{_quoted(run)}/cancel")

    # -- KV files ------------------------------------------------------------------------------
    def kv(self, prefix: str = "") -> AsyncIterator[JsonObject]:
        """Give the named KV files whose paths begin with `prefix`."""
        return self._pages("/v1/kv", {"prefix": prefix})

    async def kv_stat(self, path: str) -> JsonObject:
        """Return one named KV file."""
        return await self._json("GET", f"/v1/kv/{quote(path, safe='')}")

    async def kv_remove(self, path: str) -> None:
        """Remove a KV file's name."""
        await self._json("DELETE", f"/v1/kv/{quote(path, safe='')}")

    async def kv_download(self, path: str) -> AsyncIterator[bytes]:
        """Give a named KV file (safetensors), piece by piece."""
        url = URL(f"{self.url}/v1/kv/{quote(path, safe='')}?download=1", encoded=True)
        with _translated():
            async with self._session.get(url) as response:
                await _check(response)
                async for piece in response.content.iter_chunked(_PIECE_BYTES):
                    yield piece

    async def kv_upload(
        self, path: str, file: bytes | IO[bytes] | AsyncIterable[bytes], **options: Any
    ) -> JsonObject:
        """Give a KV file (safetensors) a durable name; return what `kv_stat` does.

        `options` are replace (true), rebuild, public (false) and keep_ms.
        """
        query = {name: str(int(value)) for name, value in options.items() if value is not None}
        url = URL(f"{self.url}/v1/kv/{quote(path, safe='')}", encoded=True).update_query(query)
        headers = {"Content-Type": "application/octet-stream"}
        data = _payload(file) if isinstance(file, bytes) else file
        with _translated():
            async with self._session.put(url, data=data, headers=headers) as response:
                await _check(response)
                document: JsonObject = json.loads(await response.read())
                return document

    # -- Operators (an admin key) --------------------------------------------------------------
    def tenants(self) -> AsyncIterator[JsonObject]:
        """Give all tenants, by their ids."""
        return self._pages("/v1/admin/tenants")

    async def tenant(self, tenant: str) -> JsonObject:
        """Return a tenant."""
        return await self._json("GET", _tenant_path(tenant))

    async def create_tenant(self, tenant: str, **said: Any) -> JsonObject:
        """Make a tenant; `said` is suspended, weight, quotas."""
        return await self._json("POST", "/v1/admin/tenants", None, _encoded({"id": tenant, **said}))

    async def change_tenant(self, tenant: str, **said: Any) -> JsonObject:
        """Change what is said of a tenant."""
        return await self._json("PATCH", _tenant_path(tenant), None, _encoded(said))

    async def delete_tenant(self, tenant: str, *, everything: bool = False) -> None:
        """Forget a tenant that has nothing any more, or with `everything` whatever it has."""
        query = {"everything": "1"} if everything else None
        await self._json("DELETE", _tenant_path(tenant), query)

    async def keys(self, tenant: str | None) -> list[JsonObject]:
        """Return a tenant's keys, or the operators' (None)."""
        keys: list[JsonObject] = (await self._json("GET", _keys_path(tenant)))["data"]
        return keys

    async def create_key(self, tenant: str | None, **wanted: Any) -> JsonObject:
        """Make a key (`wanted`: role, name, expires_ms); its `key` is told this once."""
        return await self._json("POST", _keys_path(tenant), None, _encoded(wanted))

    async def rotate_key(self, tenant: str | None, key: str, grace_ms: int = 0) -> JsonObject:
        """Make a key in place of one, which stays for `grace_ms`; return as `create_key`."""
        path = f"{_keys_path(tenant)}/{_quoted(key)}/rotate"
        return await self._json("POST", path, {"grace_ms": str(grace_ms)})

    async def revoke_key(self, tenant: str | None, key: str) -> None:
        """Take a key away."""
        await self._json("DELETE", f"{_keys_path(tenant)}/{_quoted(key)}")

    def gateways(self) -> AsyncIterator[JsonObject]:
        """Give the gateways that share the server's database."""
        return self._pages("/v1/admin/gateways")

    async def drop_gateway(self, gateway: str) -> None:
        """Wait no more for a gateway that is gone for good."""
        await self._json("DELETE", f"/v1/admin/gateways/{_quoted(gateway)}")

    def usage(self, query: Mapping[str, str] | None = None) -> AsyncIterator[JsonObject]:
        """Give what tenants used, by day and tenant; `query` is tenant, from, to."""
        return self._pages("/v1/admin/usage", dict(query or {}))

    async def usage_csv(self, query: Mapping[str, str] | None = None) -> str:
        """Return the same as CSV, with headings."""
        url = URL(f"{self.url}/v1/admin/usage").update_query({**(query or {}), "format": "csv"})
        with _translated():
            async with self._session.get(url) as response:
                await _check(response)
                return (await response.read()).decode()

    def audit(self, query: Mapping[str, str] | None = None) -> AsyncIterator[JsonObject]:
        """Give what operators did and what was denied, the newest first; `query`: kind, tenant."""
        return self._pages("/v1/admin/audit", dict(query or {}))

    # -- Inside --------------------------------------------------------------------------------
    @property
    def _session(self) -> aiohttp.ClientSession:
        assert self._open is not None, "use the client in `async with`"
        return self._open

    def _socket(self, address: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        return made

    async def _start(self, program: str, body: JsonObject, query: dict[str, str]) -> JsonObject:
        path = f"/v1/programs/{_quoted(program)}/runs"
        return await self._json("POST", path, query, _encoded(body))

    async def _pages(
        self, path: str, query: dict[str, str] | None = None
    ) -> AsyncIterator[JsonObject]:
        query = {"limit": "200", **(query or {})}
        while True:
            page = await self._json("GET", path, query)
            for item in page["data"]:
                yield item
            if page["next"] is None:
                return
            query["after"] = page["next"]

    async def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content: str = "application/json",
    ) -> JsonObject:
        headers = {"Content-Type": content} if body is not None else {}

        url = URL(f"{self.url}{path}", encoded=True)
        with _translated():
            async with self._session.request(
                method, url.update_query(query or {}), data=_payload(body), headers=headers
            ) as response:
                await _check(response)
                document: JsonObject = json.loads(await response.read() or b"{}")
                return document


def _encoded(body: JsonObject) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def _payload(body: bytes | None) -> bytes | io.BytesIO | None:
    # A large body is sent piece by piece, so that the loop can do something else between them.
    return io.BytesIO(body) if body is not None and len(body) > _PIECE_BYTES else body


def _tenant_path(tenant: str) -> str:
    return f"/v1/admin/tenants/{_quoted(tenant)}"


def _keys_path(tenant: str | None) -> str:
    return f"{'/v1/admin' if tenant is None else _tenant_path(tenant)}/keys"


def _quoted(name: str) -> str:
    return quote(name, safe=":")


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    try:
        problem = json.loads(await response.read())
    except ValueError:
        problem = {"title": response.reason, "status": response.status}
    after = response.headers.get("Retry-After", "")
    seconds = float(after) if after.isdigit() else None
    raise ServerError(response.status, problem, seconds)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    number, kind, data = 0, "", ""
    async for line in _lines(response):
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "event":
            kind = value
        elif name == "data":
            data = value
        elif not line and data:
            yield Event(number, kind, json.loads(data))
            kind, data = "", ""


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    rest = bytearray()
    async for chunk in response.content.iter_any():
        *lines, tail = chunk.split(b"\n")
        for line in lines:
            yield (rest + line).decode()
            rest.clear()
        rest += tail
        if len(rest) > _LINE_BYTES_MAX:
            raise ConnectionFailed("the server sent a line without an end")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        words = os.strerror(error.errno) if error.errno else error.os_error
        raise ConnectionFailed(f"no server at {error.host}:{error.port}: {words}") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ConnectionFailed(str(error) or type(error).__name__) from error
