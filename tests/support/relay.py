"""A relay of TCP connections that loses some of them, as networks do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Relay:
    """Connections to a server. `lost` counts those that were cut, `connections` all of them.

    The first ones are cut when this many bytes of the server's answers have passed, one number of
    `cuts` for each. With 0 the whole request has come, and the client gets nothing.
    """

    def __init__(self, server: str, cuts: list[int]) -> None:
        address = urlsplit(server)
        self._to = address.hostname or "127.0.0.1", address.port or 80
        self._cuts = cuts
        self.connections = 0
        self.lost = 0
        self.url = ""
        self._carrying: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine, whose task nobody would end: its sockets then stay open behind the test.
        self._carrying[asyncio.create_task(self.carry(reader, writer))] = writer

    async def close(self) -> None:
        """End what is still carried, and wait until its sockets are closed."""
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        for writer in self._carrying.values():
            await _close(writer)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        left = self._cuts[number] if number < len(self._cuts) else None
        from_server, to_server = await asyncio.open_connection(*self._to)
        asking = asyncio.create_task(_copy(reader, to_server))
        try:
            while data := await from_server.read(1 << 16):
                if left is not None and len(data) > left:
                    writer.write(data[:left])
                    await writer.drain()
                    self.lost += 1
                    return
                left = None if left is None else left - len(data)
                writer.write(data)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            asking.cancel()
            writer.close()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            await _close(to_server)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@asynccontextmanager
async def relaying(server: str, *cuts: int) -> AsyncIterator[Relay]:
    """Relay to a server's address, and cut the first connections."""
    relay = Relay(server, [*cuts])
    listening = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
    async with listening:
        relay.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        try:
            yield relay
        finally:
            await relay.close()
