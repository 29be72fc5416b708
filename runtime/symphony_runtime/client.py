"""A client of the HTTP interface, for command line, tests and benchmarks.

    async with Client(url, key) as client:
        program = await client.upload(Path("chat.wasm").read_bytes(), name="chat")
        result = await client.run(program["id"], input="Hello")
        async for event in client.stream("chat", input="Hello"):
            ...

JSON objects are returned as the server sent them. A refusal is a `ServerError` with the problem
document; a server that is missing or goes away is a `ConnectionFailed`.
"""

import asyncio
import base64
import io
import json
import os
import socket
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any
from urllib.parse import quote
from weakref import WeakSet

import aiohttp
from aiohttp.connector import AddrInfoType
from yarl import URL

JsonObject = dict[str, Any]
Body = JsonObject | bytes | IO[bytes] | AsyncIterable[bytes] | None
_PIECE_BYTES = 256 << 10
_CLOSE_PASSES = 100  # passes of the loop until sockets that were shut down are closed
_LINE_BYTES_MAX = 8 << 20  # an event's data is one line, which may hold an escaped message of 1 MiB


class ClientError(Exception):
    """Base class of a client's errors."""


class ConnectionFailed(ClientError):  # noqa: N818 - states what happened
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
    """One event of a run: `message`, `log`, `status` or `usage`; or one of `Client.changes`."""

    id: int
    kind: str
    data: JsonObject

    def message(self) -> bytes:
        return message_bytes(self.data["message"])


def message_bytes(message: str | Mapping[str, str]) -> bytes:
    return message.encode() if isinstance(message, str) else base64.b64decode(message["base64"])


class Client:
    """A connection to one server with one key; an asynchronous context manager."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._open: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()

    async def __aenter__(self) -> "Client":
        self._open = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=0, socket_factory=self._socket),
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
        # Drop a body that is still being written although the server has refused it.
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
        async with self._request("GET", "/readyz", check=False) as response:
            document = json.loads(await response.read())
            return response.status == 200, document.get("roles", [])

    async def openapi(self) -> JsonObject:
        return await self._json("GET", "/openapi.json")

    async def statistics(self, *, check: bool = False) -> JsonObject:
        """Return the counters of kernel and gateway (admin key).

        `check` audits the kernel first. A kernel whose audit fails stops: that is a ServerError or
        a ConnectionFailed.
        """
        return await self._json("GET", "/v1/admin/statistics", {"check": str(int(check))})

    async def metrics(self) -> str:
        """Return the metrics in Prometheus's text format."""
        return await self._text("/metrics")

    # -- Programs ------------------------------------------------------------------------------
    async def upload(
        self, program: bytes, name: str | None = None, content_type: str = "application/wasm"
    ) -> JsonObject:
        """Upload a program, a module or source of the type's language; return its view."""
        query = {"name": name} if name is not None else {}
        return await self._json("POST", "/v1/programs", query, program, content_type)

    async def program(self, program: str) -> JsonObject:
        return await self._json("GET", f"/v1/programs/{_quoted(program)}")

    async def delete_program(self, program: str) -> None:
        await self._json("DELETE", f"/v1/programs/{_quoted(program)}")

    def programs(self) -> AsyncIterator[JsonObject]:
        """Yield all programs, newest first."""
        return self._pages("/v1/programs")

    async def versions(self, name: str) -> list[JsonObject]:
        """Return the versions of a name, newest first; `current` is the one it points at."""
        path = f"/v1/programs/{_quoted(name)}/versions"
        versions: list[JsonObject] = (await self._json("GET", path))["data"]
        return versions

    async def point(self, name: str, program: str) -> JsonObject:
        """Point a name at a program (an id, a name, or name@version); return its view."""
        body = {"program": program}
        return await self._json("PUT", f"/v1/programs/{_quoted(name)}", None, body)

    async def rollback(self, name: str, version: str | None = None) -> JsonObject:
        """Point a name at an older version, by default the one before; LookupError: none is."""
        if version is None:
            versions = iter(await self.versions(name))
            any(each["current"] for each in versions)  # up to the current one
            before = next(versions, None)
            if before is None:
                raise LookupError(f"{name} has no version before the one that it points at")
            version = str(before["id"])
        return await self.point(name, f"{name}@{version}")

    async def delete_version(self, name: str, version: str) -> None:
        """Delete a version that its name does not point at."""
        await self._json("DELETE", f"/v1/programs/{_quoted(name)}/versions/{_quoted(version)}")

    async def delete_name(self, name: str) -> None:
        """Delete a name with its versions, but for programs that another name has."""
        await self._json("DELETE", f"/v1/programs/{_quoted(name)}/versions")

    # -- Runs ----------------------------------------------------------------------------------
    async def run(self, program: str, input: Any = "", **options: Any) -> JsonObject:  # noqa: A002
        """Run a program to its end; `options` are entry, limits, priority, trace."""
        return await self._start(program, {"input": input, **options}, {})

    async def start(self, program: str, input: Any = "", **options: Any) -> str:  # noqa: A002
        """Start a run; return its id at once."""
        body = {"input": input, **options}
        return str((await self._start(program, body, {"detach": "1"}))["id"])

    async def stream(
        self,
        program: str,
        input: Any = "",  # noqa: A002
        **options: Any,
    ) -> AsyncIterator[Event]:
        """Run a program and yield its events."""
        body = {"input": input, **options, "stream": True}
        path = f"/v1/programs/{_quoted(program)}/runs"
        async with self._request("POST", path, body=body) as response:
            async for event in _events(response):
                yield event

    async def result(self, run: str) -> JsonObject:
        """Return a run with its messages so far."""
        return await self._json("GET", f"/v1/runs/{_quoted(run)}")

    def runs(self, **wanted: str) -> AsyncIterator[JsonObject]:
        """Yield all runs, newest first; `wanted` picks some: program, status, limit_hit."""
        return self._pages("/v1/runs", wanted)

    async def changes(self, after: int = 0, *, follow: bool = True) -> AsyncIterator[Event]:
        """Yield what happens to all runs of the key's tenant, behind a change's id.

        First comes a `begin`, then a `run` for each start, change and end, with the run as listed.
        A `begin` that has not `resumed` means that changes are lost: list the runs again.
        """
        query, headers = {"follow": str(int(follow))}, {"Last-Event-ID": str(after)}
        async with self._request("GET", "/v1/events", query, headers=headers) as response:
            async for event in _events(response):
                yield event

    async def input(self, run: str) -> bytes:
        """Return what a run was given."""
        async with self._request("GET", f"/v1/runs/{_quoted(run)}/input") as response:
            return await response.read()

    async def rerun(self, run: str, **options: Any) -> str:
        """Start a run's program again with its input, entry, limits and priority; return its id.

        `options` are those of `run`, in place of the run's.
        """
        before, data = await self.result(run), await self.input(run)
        same = {name: before[name] for name in ("entry", "limits", "priority")}
        return await self.start(before["program"], data.decode(), **{**same, **options})

    async def children(self, run: str) -> list[JsonObject]:
        """Return the children that a run's programs have spawned, in this order."""
        path = f"/v1/runs/{_quoted(run)}/children"
        children: list[JsonObject] = (await self._json("GET", path))["data"]
        return children

    async def trace(self, run: str) -> JsonObject:
        """Return the Chrome trace events of a run that was started with `trace=True`."""
        return await self._json("GET", f"/v1/runs/{_quoted(run)}/trace")

    async def delete_run(self, run: str) -> None:
        """Delete a run that has ended."""
        await self._json("DELETE", f"/v1/runs/{_quoted(run)}")

    async def live_runs(self) -> list[JsonObject]:
        """Return the newest live runs, each with what it holds (`held`)."""
        query = {"live": "1", "limit": "200"}
        runs: list[JsonObject] = (await self._json("GET", "/v1/runs", query))["data"]
        return runs

    async def events(
        self, run: str, after: int = 0, *, follow: bool = True
    ) -> AsyncIterator[Event]:
        """Yield a run's events after an id: to the last one, or the current ones."""
        path, query = f"/v1/runs/{_quoted(run)}/events", {"follow": str(int(follow))}
        headers = {"Last-Event-ID": str(after)}
        async with self._request("GET", path, query, headers=headers) as response:
            async for event in _events(response):
                yield event

    async def send(self, run: str, message: bytes, *, close: bool = False) -> None:
        """Send a message to a run; `close` ends its input (an empty message is not sent)."""
        query = {"close": "1"} if close else {}
        path = f"/v1/runs/{_quoted(run)}/messages"
        await self._json("POST", path, query, message, "application/octet-stream")

    async def cancel(self, run: str) -> JsonObject:
        """End a run; return its view."""
        return await self._json("POST", f"/v1/runs/{_quoted(run)}/cancel")

    # -- KV files ------------------------------------------------------------------------------
    def kv(self, prefix: str = "") -> AsyncIterator[JsonObject]:
        """Yield the named KV files whose paths start with `prefix`."""
        return self._pages("/v1/kv", {"prefix": prefix})

    async def kv_stat(self, path: str) -> JsonObject:
        return await self._json("GET", _kv_path(path))

    async def kv_pages(self, path: str) -> JsonObject:
        """Return a named KV file with `data`: all its pages, in ranges of equal ones."""
        shown = await self._json("GET", _kv_path(path, "kv-pages"), {"limit": "500"})
        while shown["next"] is not None:
            query = {"limit": "500", "after": shown["next"]}
            more = await self._json("GET", _kv_path(path, "kv-pages"), query)
            shown = {**more, "data": shown["data"] + more["data"]}
        return shown

    async def kv_tokens(
        self, path: str, first: int = 0, limit: int = 1_024, *, text: bool = False
    ) -> JsonObject:
        """Return tokens of a named KV file with their positions, and with `text` their texts."""
        query = {"after": str(first), "limit": str(limit), "text": str(int(text))}
        return await self._json("GET", _kv_path(path, "kv-tokens"), query)

    async def prefixes(self, limit: int = 50, depth: int = 16, *, text: bool = False) -> JsonObject:
        """Return the tenant's cached prefixes as a tree: parts with their parents and hits."""
        query = {"limit": str(limit), "depth": str(depth), "text": str(int(text))}
        return await self._json("GET", "/v1/prefixes", query)

    async def kv_remove(self, path: str) -> None:
        await self._json("DELETE", _kv_path(path))

    async def kv_download(self, path: str) -> AsyncIterator[bytes]:
        """Yield a named KV file (safetensors) in pieces."""
        async with self._request("GET", _kv_path(path), {"download": "1"}) as response:
            async for piece in response.content.iter_chunked(_PIECE_BYTES):
                yield piece

    async def kv_upload(
        self, path: str, file: bytes | IO[bytes] | AsyncIterable[bytes], **options: Any
    ) -> JsonObject:
        """Upload a KV file (safetensors) under a durable name; return as `kv_stat`.

        `options` are replace (true), rebuild, public (false) and keep_ms.
        """
        query = {name: str(int(value)) for name, value in options.items() if value is not None}
        return await self._json("PUT", _kv_path(path), query, file, "application/octet-stream")

    # -- Operators (an admin key) --------------------------------------------------------------
    def tenants(self) -> AsyncIterator[JsonObject]:
        """Yield all tenants, by id."""
        return self._pages("/v1/admin/tenants")

    async def tenant(self, tenant: str) -> JsonObject:
        return await self._json("GET", _tenant_path(tenant))

    async def create_tenant(self, tenant: str, **fields: Any) -> JsonObject:
        """Create a tenant; `fields` are suspended, weight, quotas."""
        return await self._json("POST", "/v1/admin/tenants", None, {"id": tenant, **fields})

    async def change_tenant(self, tenant: str, **fields: Any) -> JsonObject:
        return await self._json("PATCH", _tenant_path(tenant), None, fields)

    async def delete_tenant(self, tenant: str, *, everything: bool = False) -> None:
        """Delete a tenant that holds nothing, or with `everything` all that it holds too."""
        query = {"everything": "1"} if everything else None
        await self._json("DELETE", _tenant_path(tenant), query)

    async def keys(self, tenant: str | None) -> list[JsonObject]:
        """Return a tenant's keys, or the operators' (None)."""
        keys: list[JsonObject] = (await self._json("GET", _keys_path(tenant)))["data"]
        return keys

    async def create_key(self, tenant: str | None, **wanted: Any) -> JsonObject:
        """Create a key (`wanted`: role, name, expires_ms); its `key` is returned only now."""
        return await self._json("POST", _keys_path(tenant), None, wanted)

    async def rotate_key(self, tenant: str | None, key: str, grace_ms: int = 0) -> JsonObject:
        """Replace a key, which stays valid for `grace_ms`; return as `create_key`."""
        path = f"{_keys_path(tenant)}/{_quoted(key)}/rotate"
        return await self._json("POST", path, {"grace_ms": str(grace_ms)})

    async def revoke_key(self, tenant: str | None, key: str) -> None:
        await self._json("DELETE", f"{_keys_path(tenant)}/{_quoted(key)}")

    def gateways(self) -> AsyncIterator[JsonObject]:
        """Yield the gateways that share the server's database."""
        return self._pages("/v1/admin/gateways")

    async def drop_gateway(self, gateway: str) -> None:
        """Forget a gateway that will not return."""
        await self._json("DELETE", f"/v1/admin/gateways/{_quoted(gateway)}")

    def usage(self, query: Mapping[str, str] | None = None) -> AsyncIterator[JsonObject]:
        """Yield what tenants used, by day and tenant; `query` is tenant, from, to."""
        return self._pages("/v1/admin/usage", dict(query or {}))

    async def usage_csv(self, query: Mapping[str, str] | None = None) -> str:
        """Return usage as CSV, with headings."""
        return await self._text("/v1/admin/usage", {**(query or {}), "format": "csv"})

    def audit(self, query: Mapping[str, str] | None = None) -> AsyncIterator[JsonObject]:
        """Yield the audit log, newest first; `query`: kind, tenant."""
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
        return await self._json("POST", path, query, body)

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
        body: Body = None,
        content: str = "application/json",
    ) -> JsonObject:
        headers = {"Content-Type": content} if body is not None else {}
        async with self._request(method, path, query, body=body, headers=headers) as response:
            document: JsonObject = json.loads(await response.read() or b"{}")
            return document

    async def _text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        async with self._request("GET", path, query) as response:
            return (await response.read()).decode()

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Body = None,
        headers: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make a request; a refusal is an error with `check`. Errors are a `ClientError`."""
        url = URL(f"{self.url}{path}", encoded=True).update_query(query or {})
        try:
            async with self._session.request(
                method, url, data=_payload(body), headers=headers
            ) as response:
                if check:
                    await _check(response)
                yield response
        except aiohttp.ClientConnectorError as error:
            words = os.strerror(error.errno) if error.errno else error.os_error
            raise ConnectionFailed(f"no server at {error.host}:{error.port}: {words}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ConnectionFailed(str(error) or type(error).__name__) from error


def _payload(body: Body) -> bytes | IO[bytes] | AsyncIterable[bytes] | None:
    if isinstance(body, dict):
        body = json.dumps(body, ensure_ascii=False).encode()
    # A large body is sent in pieces, so that the loop can do other work between them.
    return io.BytesIO(body) if isinstance(body, bytes) and len(body) > _PIECE_BYTES else body


def _tenant_path(tenant: str) -> str:
    return f"/v1/admin/tenants/{_quoted(tenant)}"


def _keys_path(tenant: str | None) -> str:
    return f"{'/v1/admin' if tenant is None else _tenant_path(tenant)}/keys"


def _kv_path(path: str, part: str = "kv") -> str:
    return f"/v1/{part}/{quote(path, safe='')}"


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
