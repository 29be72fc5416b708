"""The gateway's end of the link to the kernel."""

import asyncio
from pathlib import Path
from typing import Any

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import decode
from symphony_kernel.protocol.sessions import SessionLink, SessionState
from symphony_runtime.gateway.links.links import KernelLink


class Listener:
    """Ignores all that a link reports."""

    def exceeded(self, instance: int, reason: str) -> None: ...

    def traced(self, instance: int, events: list[Any]) -> None: ...

    def kernel_lost(self, kernel: KernelLink) -> None: ...


async def ask() -> tuple[KernelLink, m.Message, "asyncio.Task[Any]"]:
    link = KernelLink(Path("nowhere"), b"", Listener(), 5.0)
    session = SessionLink(SessionState(b"s"))
    link.session_begun(session, m.Welcome(1, {}))
    asking = asyncio.create_task(link.ask("kv_read", tenant="t"))
    await asyncio.sleep(0)
    return link, m.decode(decode(session.state().kept[0])), asking


async def test_answer_for_a_dead_gateway_is_not_taken_by_the_next() -> None:
    """It may come late, for example a piece of another tenant's file."""
    _, theirs, gone = await ask()
    link, ours, asking = await ask()
    assert isinstance(theirs, m.Ask)
    assert isinstance(ours, m.Ask)
    link._take(list(m.encode(m.Answer(theirs.seq, 0, b"another's"))))
    link._take(list(m.encode(m.Answer(ours.seq, 0, b"ours"))))
    assert await asking == b"ours"
    gone.cancel()
