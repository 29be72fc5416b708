"""Simultaneous chat requests that begin alike: a real server computes their beginning once."""

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest

from tests.support.gateway.openai_client import MODEL
from tests.support.server.server import RunningServer

COUNT = 16
PREFIX = 1024  # tokens at least, which all requests of a test have in common
WORDS = "def read_lines(path): return open(path).read().splitlines()\n"
_numbers = itertools.count()


@pytest.fixture
def document() -> str:
    """Return a text of more than PREFIX tokens that no other test has sent."""
    return f"# {next(_numbers)} module\n" + WORDS * 80


def ask(client: openai.AsyncOpenAI, document: str, which: int) -> Any:
    messages: Any = [
        {"role": "system", "content": document},
        {"role": "user", "content": f"{which} questions"},
    ]
    return client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=4, temperature=0
    )


def clients(server: RunningServer, stack: AsyncExitStack, key: str | None = None) -> Any:
    made = openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key=key or server.key, max_retries=0, timeout=120
    )
    return stack.enter_async_context(made)


def tokens(answers: list[Any]) -> int:
    return sum(answer.usage.prompt_tokens for answer in answers)


def contents(answers: list[Any]) -> list[str]:
    return [answer.choices[0].message.content for answer in answers]


async def computed(server: RunningServer, before: dict[str, Any]) -> int:
    after = await server.wait_until_idle(60)
    found: int = after["prefill_tokens"] - before["prefill_tokens"]
    return found


async def test_simultaneous_chats_compute_their_prefix_once(
    server: RunningServer, document: str
) -> None:
    async with AsyncExitStack() as stack:
        client = await clients(server, stack)
        before = await server.wait_until_idle()
        answers = await asyncio.gather(*(ask(client, document, i) for i in range(COUNT)))
        after = await server.wait_until_idle(60)
        saved = tokens(answers) - (after["prefill_tokens"] - before["prefill_tokens"])
        assert saved >= (COUNT - 1) * PREFIX
        kinds = ("prefix_cache_shared_tokens", "prefix_cache_hit_tokens")
        assert saved == sum(after[kind] - before[kind] for kind in kinds)
        assert saved == sum(each.usage.prompt_tokens_details.cached_tokens for each in answers)
        stranger = await clients(server, stack, await server.add_tenant("alone"))
        alone = [await ask(stranger, document, i) for i in range(COUNT)]
        assert contents(answers) == contents(alone)


async def test_chats_share_on_when_the_first_is_cancelled(
    server: RunningServer, document: str
) -> None:
    async with AsyncExitStack() as stack:
        client = await clients(server, stack)
        before = await server.wait_until_idle()
        first = asyncio.create_task(ask(client, document, 0))
        async with asyncio.timeout(60):
            while (await server.counters())["prefill_tokens"] == before["prefill_tokens"]:
                assert not first.done()  # its first step has not ended
        others = asyncio.gather(*(ask(client, document, i) for i in range(1, COUNT)))
        await asyncio.sleep(0.01)
        assert first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        answers = await others
        # The cancelled request's steps under way are lost: two of them at most.
        saved = tokens(answers) - await computed(server, before)
        assert saved >= (COUNT - 2) * PREFIX - 2 * 512
        stranger = await clients(server, stack, await server.add_tenant("undisturbed"))
        alone = [await ask(stranger, document, i) for i in range(1, COUNT)]
        assert contents(answers) == contents(alone)


async def test_simultaneous_chats_of_two_tenants_share_nothing(
    server: RunningServer, document: str
) -> None:
    async with AsyncExitStack() as stack:
        keys = [await server.add_tenant(name) for name in ("left", "right")]
        both = [await clients(server, stack, key) for key in keys]
        before = await server.wait_until_idle()
        answers = await asyncio.gather(*(ask(client, document, 1) for client in both))
        assert await computed(server, before) == tokens(answers)
        assert contents(answers[:1]) == contents(answers[1:])
