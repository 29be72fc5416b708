"""How a client asks: a prompt server, request by request, or Symphony, a run at a time.

Connections are kept and reused. The round trip to a client that is elsewhere is a delay before each
request: one for each prompt, one for a whole run.
"""

import asyncio
import json
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp
from symphony import AsyncClient, message_bytes

from benchmarks.evaluation.applications import CLIENTS, Around, Tokens
from benchmarks.evaluation.tasks import Material, Task
from benchmarks.serving.client import REQUEST_SECONDS_MAX, Endpoint, MeasureError

CONTEXT_NAME = "evaluation/context"
LLAMA_CPP = "llama.cpp"
_ATTEMPTS = 3


@dataclass(slots=True)
class Seen:
    """What a client has asked for, and got, since the last look."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: int = 0


class Runner(Protocol):
    """Runs applications on one system."""

    seen: Seen

    async def __aenter__(self) -> Self:
        """Connect."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Hang up."""

    async def prepare(self, streams: int) -> None:
        """Let the server know the context, as it does when it has been in use for a while."""

    async def run(self, task: Task, delay: float) -> Tokens:
        """Run an application with a round trip of `delay` seconds; return the last tokens."""


class PromptRunner:
    """Applications as clients of a prompt server that takes and tells token ids."""

    def __init__(self, endpoint: Endpoint, context: Tokens, material: Material) -> None:
        self._endpoint = endpoint
        self._material = material
        self._context = context
        self._native = endpoint.name.startswith(LLAMA_CPP)
        self._session: aiohttp.ClientSession
        self.seen = Seen()

    async def __aenter__(self) -> Self:
        """Connect."""
        self._session = aiohttp.ClientSession(
            self._endpoint.url,
            headers=self._endpoint.headers(),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX),
            connector=aiohttp.TCPConnector(limit=0),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Hang up."""
        await self._session.close()

    async def prepare(self, streams: int) -> None:
        """Ask for a token behind the context in as many requests as will be under way."""
        first = self._context[0]
        asked = (
            self.ask([*self._context, first + number % 200], 1, 0.0) for number in range(streams)
        )
        await asyncio.gather(*asked)

    async def run(self, task: Task, delay: float) -> Tokens:
        """Run an application."""

        async def ask(prompt: Tokens, new: int) -> Tokens:
            return await self.ask(prompt, new, delay)

        around = Around(ask, self._context, self._material.encode)
        return await CLIENTS[task["application"]](around, task)

    async def ask(self, prompt: Tokens, new: int, delay: float) -> Tokens:
        """Return the `new` tokens behind a prompt.

        Raises:
            MeasureError: They did not come, or not as many.
        """
        if delay:
            await asyncio.sleep(delay)
        path = "/completion" if self._native else "/v1/completions"
        answer = await self._post(path, self._body(prompt, new))
        tokens, cached = self._read(answer)
        if len(tokens) != new:
            words = f"{len(tokens)} tokens came where {new} were asked for"
            raise MeasureError(f"{self._endpoint.name}: {words}")
        self.seen.requests += 1
        self.seen.prompt_tokens += len(prompt)
        self.seen.cached_tokens += cached
        self.seen.generated += new
        return tokens

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        for left in reversed(range(_ATTEMPTS)):
            try:
                async with self._session.post(path, json=body) as response:
                    text = await response.text()
                    break
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                # A server may close a connection that was kept, just when it is used again.
                closed = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
                refused = isinstance(error, aiohttp.ClientConnectorError)
                if not closed or refused or not left:
                    raise MeasureError(f"{self._endpoint.name}: {error!r}") from error
        if response.status != 200:
            words = f"HTTP {response.status}: {text[:500]}"
            raise MeasureError(f"{self._endpoint.name}: {words}")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _body(self, prompt: Tokens, new: int) -> dict[str, Any]:
        common = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "stream": False}
        if self._native:
            return common | {"n_predict": new, "return_tokens": True, "cache_prompt": True}
        return common | {
            "model": self._endpoint.model,
            "max_tokens": new,
            "min_tokens": new,
            "return_token_ids": True,
        }

    def _read(self, answer: dict[str, Any]) -> tuple[Tokens, int]:
        """Return the tokens, and how many of the prompt came from a cache."""
        if self._native:
            return answer["tokens"], int(answer["timings"].get("cache_n") or 0)
        details = answer["usage"].get("prompt_tokens_details") or {}
        return answer["choices"][0]["token_ids"], int(details.get("cached_tokens") or 0)


class ProgramRunner:
    """Applications as programs that were uploaded to Symphony."""

    def __init__(self, endpoint: Endpoint, context: Tokens, wasm: bytes) -> None:
        self._client = AsyncClient(endpoint.url, endpoint.key, retries=0)
        self._context = context
        self._wasm = wasm
        self._program: str | None = None
        self.seen = Seen()

    async def __aenter__(self) -> Self:
        """Connect."""
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Hang up."""
        await self._client.__aexit__(kind, error, traceback)

    async def prepare(self, streams: int) -> None:
        """Upload the program, and let it compute the context, once."""
        if self._program is None:
            self._program = str(
                (await self._client.programs.upload(self._wasm, "evaluation"))["id"]
            )
            await self.run({"application": "prepare", "context": self._context}, 0.0)
        short = {"application": "completion", "prompt": self._context[:8], "new": 1}
        await asyncio.gather(*(self.run(short, 0.0) for _ in range(streams)))

    async def run(self, task: Task, delay: float) -> Tokens:
        """Run an application.

        Raises:
            MeasureError: The program did not end well.
        """
        if delay:
            await asyncio.sleep(delay)
        assert self._program is not None, "it was prepared"
        given = json.dumps({**task, "name": CONTEXT_NAME})
        result = await self._client.run(self._program, input=given)
        if (result["status"], result["exit_code"]) != ("exited", 0):
            raise MeasureError(f"the program failed: {result}")
        usage = result["usage"]
        assert usage is not None, "it has ended"
        self.seen.requests += 1
        self.seen.prompt_tokens += usage["prompt_tokens"]
        self.seen.cached_tokens += usage["cached_tokens"]
        self.seen.generated += usage["completion_tokens"]
        tokens: Tokens = json.loads(message_bytes(result["messages"][0]))["tokens"]
        return tokens
