"""The asynchronous client: what is done with a server, and its parts by what they are about."""

import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Unpack

from symphony.client.adapters import AsyncAdapters
from symphony.client.admin import AsyncAdmin
from symphony.client.events import Event
from symphony.client.kv import AsyncKv
from symphony.client.places import find_server
from symphony.client.programs import AsyncPrograms
from symphony.client.refusals import ANSWER_BYTES_MAX, whole_answer
from symphony.client.retries import RETRIES_DEFAULT
from symphony.client.runs import AsyncRuns, RunOptions, start_call, stream_run
from symphony.client.secrets import AsyncSecrets
from symphony.client.transport import Call, Transport
from symphony.client.views import Limits, Role, RunResult


class AsyncClient:
    """A connection to one server with one key; an asynchronous context manager.

        async with AsyncClient(url, key) as client:
            program = await client.programs.upload(Path("chat.wasm").read_bytes(), name="chat")
            result = await client.run(program["id"], input="Hello")
            async for event in client.stream("chat", input="Hello"):
                ...

    JSON objects are returned as the server sent them. A refusal is a `ServerError` with the problem
    document; a server that is missing or goes away is a `ConnectionFailed`.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        operator: bool = False,
        retries: int = RETRIES_DEFAULT,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        """Without `url` or `key` they are found as `symphony.client.places.choose` says.

        `operator`: the key is an operator's. `retries`: how often a request that failed in passing
        is made again. With none, starts and uploads carry no Idempotency-Key unless it is given.
        `answer_bytes_max`: of an answer that is returned whole; a longer one is a ClientError.

        Raises ClientError: no server is known, or the address is none.
        """
        found = find_server(url, key, operator=operator)
        self._transport = Transport(*found, retries, answer_bytes_max)
        self.programs = AsyncPrograms(self._transport)
        self.runs = AsyncRuns(self._transport)
        self.kv = AsyncKv(self._transport)
        self.adapters = AsyncAdapters(self._transport)
        self.secrets = AsyncSecrets(self._transport)
        self.admin = AsyncAdmin(self._transport)

    @property
    def url(self) -> str:
        """The server's address, without a slash at its end."""
        return self._transport.url

    async def __aenter__(self) -> "AsyncClient":
        self._transport.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._transport.close()

    async def run(
        self,
        program: str,
        input: Any = "",  # noqa: A002
        **options: Unpack[RunOptions],
    ) -> RunResult:
        """Run a program to its end."""
        return await self._transport.object(
            RunResult, start_call(self._transport, program, input, options)
        )

    async def start(
        self,
        program: str,
        input: Any = "",  # noqa: A002
        **options: Unpack[RunOptions],
    ) -> str:
        """Start a run; return its id at once."""
        call = start_call(self._transport, program, input, options, detach=True)
        return str((await self._transport.json(call))["id"])

    def stream(
        self,
        program: str,
        input: Any = "",  # noqa: A002
        **options: Unpack[RunOptions],
    ) -> AsyncIterator[Event]:
        """Run a program and yield its events; a lost connection is made again."""
        return stream_run(
            self._transport, start_call(self._transport, program, input, options, stream=True)
        )

    async def ready(self) -> tuple[bool, list[Role]]:
        """Return whether a run can start, and the server's roles."""
        call = Call("GET", "/readyz", check=False, repeatable=True)
        async with self._transport.request(call) as response:
            document = json.loads(await whole_answer(response, self._transport.answer_bytes_max))
            return response.status == 200, document.get("roles", [])

    async def limits(self) -> Limits:
        """Return the tenant's limits: default, maximum and of what, by name."""
        return await self._transport.get(Limits, "/v1/limits")

    async def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of the server."""
        return await self._transport.json(Call("GET", "/openapi.json", repeatable=True))

    async def metrics(self) -> str:
        """Return the metrics in Prometheus's text format."""
        return await self._transport.text("/metrics")
