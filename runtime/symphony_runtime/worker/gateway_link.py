"""How a worker meets the gateway: a link that stands for itself, unlike the kernel's sessions."""

import asyncio
from collections.abc import Callable
from typing import Any

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import HELLO_SECONDS_MAX
from symphony_kernel.protocol.links import Link
from symphony_kernel.protocol.sessions import LinkLostError


async def meet(
    link: Link, hello: m.Hello, on_frame: Callable[[list[Any]], None], on_lost: Callable[[], None]
) -> asyncio.Event:
    """Say hello and wait for the welcome; the event is set when the link has ended.

    Raises:
        LinkLostError: it was closed instead, or nobody answered.
    """
    welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lost = asyncio.Event()

    def first(frame: list[Any]) -> None:
        if welcome.done():
            on_frame(frame)
            return
        assert isinstance(m.decode(frame), m.Welcome), frame
        welcome.set_result(None)

    def closed() -> None:
        lost.set()
        if welcome.done():
            on_lost()
        else:
            welcome.set_exception(LinkLostError("the link was closed before a welcome"))

    link.receive(first, closed)
    link.send(m.encode(hello))
    try:
        async with asyncio.timeout(HELLO_SECONDS_MAX):
            await welcome
    except TimeoutError:
        link.close()
        raise LinkLostError("no welcome came") from None
    return lost
