"""Requests of one server with one key, over HTTP: JSON, texts, pages of a listing, streams."""

import asyncio
import io
import json
import os
import socket
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field, replace
from typing import IO, Any, TypedDict, TypeVar, cast
from urllib.parse import quote
from weakref import WeakSet

import aiohttp
from aiohttp.connector import AddrInfoType
from yarl import URL

from symphony.client.errors import ClientError, ConnectionFailed, ServerError
from symphony.client.refusals import (
    ANSWER_BYTES_MAX,
    no_redirects,
    problem_of,
    redirected,
    whole_answer,
)
from symphony.client.retries import Pauses

JsonObject = dict[str, Any]
T = TypeVar("T")
Body = JsonObject | bytes | IO[bytes] | AsyncIterable[bytes] | None
PIECE_BYTES = 256 << 10
_FRAME_BYTES_MAX = 8 << 20  # an event with an escaped message of 1 MiB
_CLOSE_PASSES = 100  # passes of the loop until sockets that were shut down are closed


class _Page(TypedDict):
    data: list[Any]
    next: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """A request. `once` is its Idempotency-Key, `repeatable` whether a second one does no harm.

    `own_key`: the caller has given the key, so the request never goes without it.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Body = None
    headers: Mapping[str, str] = field(default_factory=dict)
    check: bool = True  # a refusal is an error
    once: str | None = None
    own_key: bool = False
    repeatable: bool = False


Take = Callable[[AbstractAsyncContextManager[aiohttp.ClientResponse]], Awaitable[T]]


class Transport:
    """Connections to a server, from `open` to `close`. Its errors are of type ClientError.

    Each request is made again up to `retries` times where that cannot do it twice (`retries`).
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        retries: int,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        self.url = url.rstrip("/")
        self.answer_bytes_max = answer_bytes_max
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.retries = retries
        self._open: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def open(self) -> None:
        self._open = aiohttp.ClientSession(
            headers=self.headers,
            connector=aiohttp.TCPConnector(limit=0, socket_factory=self._socket),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            read_bufsize=1 << 16,
            auto_decompress=False,
            trace_configs=[no_redirects()],
        )
        if self.retries:
            # aiohttp would repeat requests unseen. A test fails when it does again.
            self._open._retry_connection = False  # noqa: SLF001

    async def close(self) -> None:
        """Close all connections, and drop a body that is still written after a refusal."""
        await self._session.close()
        for each in self._sockets:
            if each.fileno() >= 0:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for _ in range(_CLOSE_PASSES):
            if all(each.fileno() < 0 for each in self._sockets):
                return
            await asyncio.sleep(0)

    def new_once(self) -> str | None:
        """Return a new Idempotency-Key; None if the client makes no request again."""
        return uuid.uuid4().hex if self.retries else None

    async def object(self, _view: type[T], call: Call) -> T:
        """Make a request; return the JSON object of its answer as what the caller says it is."""
        return cast(T, await self.json(call))

    async def get(self, view: type[T], path: str, query: Mapping[str, str] | None = None) -> T:
        return await self.object(view, Call("GET", path, query or {}, repeatable=True))

    async def page(
        self, _view: type[T], path: str, query: Mapping[str, str] | None = None
    ) -> list[T]:
        """Return the items of a listing that is one page."""
        found: list[T] = (await self.get(_Page, path, query))["data"]
        return found

    async def pages(
        self, _view: type[T], path: str, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[T]:
        """Yield all items of a listing, page after page."""
        query = {"limit": "200", **(query or {})}
        while True:
            page = await self.get(_Page, path, query)
            for item in page["data"]:
                yield item
            if page["next"] is None:
                return
            query = {**query, "after": page["next"]}

    async def content(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        return await self._read(Call("GET", path, query or {}, repeatable=True))

    async def text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        return (await self.content(path, query)).decode()

    async def delete(self, path: str, query: Mapping[str, str] | None = None) -> None:
        """Delete something. If an answer is lost, a 404 to the repetition means that it is gone."""
        lost = False

        async def attempt(opening: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> None:
            nonlocal lost
            try:
                async with opening:
                    pass
            except ConnectionFailed as error:
                lost |= error.delivered
                raise
            except ServerError as error:
                if not (lost and error.status == 404):
                    raise

        await self._make(Call("DELETE", path, query or {}, repeatable=True), attempt)

    async def json(self, call: Call) -> JsonObject:
        """Make a request; return the JSON object of its answer, {} if it has no body."""
        document: JsonObject = json.loads(await self._read(call) or b"{}")
        return document

    @asynccontextmanager
    async def request(self, call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make a request, and yield its answer to be read as it comes."""
        async with AsyncExitStack() as stack:
            yield await self._make(call, stack.enter_async_context)

    @asynccontextmanager
    async def websocket(
        self, path: str, query: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket."""
        url = self._url(path, query)
        with translated():
            try:
                opened = await self._session.ws_connect(url, max_msg_size=_FRAME_BYTES_MAX)
            except aiohttp.WSServerHandshakeError as error:
                headers: Mapping[str, str] = error.headers or {}
                retry_after = _seconds(headers.get("Retry-After", ""))
                problem = {"title": error.message, "status": error.status}
                raise ServerError(error.status, problem, retry_after) from error
            async with opened:
                yield opened

    async def _read(self, call: Call) -> bytes:
        async def read(
            opening: AbstractAsyncContextManager[aiohttp.ClientResponse],
        ) -> bytes:
            async with opening as response:
                return await whole_answer(response, self.answer_bytes_max)

        return await self._make(call, read)

    async def _make(self, call: Call, take: Take[T]) -> T:
        """Make a request until `take` has what it wants of the answer, or no retry is left."""
        file: Any = call.body if isinstance(call.body, io.IOBase) else None
        start = file.tell() if file else 0
        pauses = Pauses(self.retries if _is_replayable(call.body) else 0)
        keyless = False
        while True:
            try:
                return await take(self._attempt(call))
            except (ConnectionFailed, ServerError) as error:
                if call.once and not call.own_key and _has_no_key_left(error):
                    call, pause, keyless = replace(call, once=None, repeatable=False), 0.0, True
                elif keyless and isinstance(error, ServerError) and error.status == 503:
                    raise  # of a proxy, perhaps, behind which the server has begun
                else:
                    found = pauses.after(error, repeatable=call.repeatable or bool(call.once))
                    if found is None:
                        raise
                    pause = found
            await asyncio.sleep(pause)
            if file:
                file.seek(start)

    @asynccontextmanager
    async def _attempt(self, call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
        url = self._url(call.path, call.query)
        headers = {**call.headers, "Idempotency-Key": call.once} if call.once else call.headers
        with translated():
            async with self._session.request(
                call.method,
                url,
                data=_payload(call.body),
                headers=headers,
                allow_redirects=False,
            ) as response:
                if 300 <= response.status < 400:
                    raise redirected(response)
                if call.check:
                    await _check(response)
                yield response

    def _url(self, path: str, query: Mapping[str, str]) -> URL:
        return URL(f"{self.url}{path}", encoded=True).update_query(query)

    @property
    def _session(self) -> aiohttp.ClientSession:
        assert self._open is not None, "use the client in `async with`"
        return self._open

    def _socket(self, address: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        return made


def quoted(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe=":")


def sending(
    method: str, path: str, body: Body, query: Mapping[str, str] | None = None, **options: Any
) -> Call:
    """Return a request with a body: JSON if it is an object, else bytes. `options`: of `Call`."""
    content = "application/json" if isinstance(body, dict) else "application/octet-stream"
    headers = {"Content-Type": content, **options.pop("headers", {})}
    return Call(method, path, query or {}, body, headers, **options)


@contextmanager
def translated() -> Iterator[None]:
    """Raise what aiohttp raises as a ConnectionFailed."""
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        words = os.strerror(error.errno) if error.errno else error.os_error
        raise ConnectionFailed(
            f"no server at {error.host}:{error.port}: {words}", delivered=False
        ) from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ConnectionFailed(str(error) or type(error).__name__) from error


def _is_replayable(body: Body) -> bool:
    return (
        body is None
        or isinstance(body, dict | bytes)
        or (isinstance(body, io.IOBase) and body.seekable())
    )


def _has_no_key_left(error: ClientError) -> bool:
    """Return whether the tenant has used all Idempotency-Keys of its day."""
    return isinstance(error, ServerError) and error.status == 429 and error.kind == "too-many-keys"


def _payload(body: Body) -> bytes | IO[bytes] | AsyncIterable[bytes] | None:
    if isinstance(body, dict):
        body = json.dumps(body, ensure_ascii=False).encode()
    # A large body is sent in pieces, so that the loop can do other work between them.
    return io.BytesIO(body) if isinstance(body, bytes) and len(body) > PIECE_BYTES else body


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    problem = await problem_of(response)
    if problem is None:
        problem = {"title": response.reason, "status": response.status}
    retry_after = _seconds(response.headers.get("Retry-After", ""))
    raise ServerError(response.status, problem, retry_after)


def _seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() else None
