"""The gateway's end of the link to the kernel."""

import asyncio
from pathlib import Path
from typing import Any

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import decode
from symphony_kernel.protocol.sessions import SessionLink, SessionState
from symphony_runtime.gateway.links.links import KernelLink


class Nobody:
    """Hears of nothing that is told here."""

    def exceeded(self, instance: int, reason: str) -> None: ...

    def traced(self, instance: int, events: list[Any]) -> None: ...

    def kernel_lost(self) -> None: ...


def test_what_the_kernel_owed_a_gateway_that_died_answers_nobody_else() -> None:
    """It may come late, a piece of another tenant's file for instance."""

    async def asked() -> tuple[KernelLink, m.Message, "asyncio.Task[Any]"]:
        link = KernelLink(Path("nowhere"), b"", Nobody(), 5.0)
        session = SessionLink(SessionState(b"s"))
        link.session_begun(session, m.Welcome(1, {}))
        asking = asyncio.create_task(link.ask("kv_read", tenant="t"))
        await asyncio.sleep(0)
        return link, m.decode(decode(session.state().kept[0])), asking

    async def scenario() -> None:
        _, theirs, gone = await asked()
        link, ours, asking = await asked()
        assert isinstance(theirs, m.Ask)
        assert isinstance(ours, m.Ask)
        link._take(list(m.encode(m.Answer(theirs.seq, 0, b"another's"))))
        link._take(list(m.encode(m.Answer(ours.seq, 0, b"ours"))))
        assert await asking == b"ours"
        gone.cancel()

    asyncio.run(scenario())
