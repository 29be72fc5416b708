"""The client's side of a run."""

import asyncio

from symphony_runtime.gateway.runs.events.inbox import Inbox


async def test_inbox_returns_all_that_has_come() -> None:
    inbox = Inbox()
    inbox.message(b"a")
    inbox.message(b"b")
    assert await inbox.next() == b"ab"
    waiting = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    inbox.message(b"c")
    assert await waiting == b"c"
    inbox.message(b"d")
    inbox.ended()
    assert await inbox.next() == b"d"
    assert await inbox.next() == b""
    assert await inbox.next() == b""


async def test_inbox_end_wakes_its_reader() -> None:
    inbox = Inbox()
    waiting = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    inbox.ended()
    assert await waiting == b""


async def test_inbox_forgets_a_cancelled_reader() -> None:
    inbox = Inbox()
    waiting = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    inbox.message(b"x")
    assert await inbox.next() == b"x"
