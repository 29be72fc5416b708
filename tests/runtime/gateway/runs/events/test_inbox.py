import asyncio

from symphony_runtime.gateway.runs.events.inbox import BATCH_BYTES, Inbox


async def test_messages_come_whole_and_about_a_batch_at_once() -> None:
    inbox = Inbox()
    sent = [bytes([i]) * (BATCH_BYTES // 2) for i in range(3)]
    for message in sent:
        inbox.message(message)
    assert await inbox.next_messages() == sent[:2]
    assert (inbox.waiting, await inbox.next_messages()) == (len(sent[2]), sent[2:])
    waiting = asyncio.create_task(inbox.next_messages())
    await asyncio.sleep(0)
    inbox.message(b"x" * (2 * BATCH_BYTES))
    assert [len(message) for message in await waiting] == [2 * BATCH_BYTES]
    inbox.ended()
    assert await inbox.next_messages() == []


async def test_joined_messages_are_cut_at_a_batch() -> None:
    inbox = Inbox()
    inbox.message(b"a")
    inbox.message(b"b" * BATCH_BYTES)
    assert await inbox.next() == b"a" + b"b" * (BATCH_BYTES - 1)
    assert await inbox.next() == b"b"
