"""The stdio transport of MCP: a child process, one JSON message per line.

The library's own transport keeps a line of any length in memory. Here a message has a bound, the
process is killed with all its children, and its end is reported at once.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from symphony_kernel.protocol.limits import TOOL_MESSAGE_BYTES_MAX, TOOL_STOP_SECONDS_MAX

from symphony_runtime.config.egress import ToolServerOptions

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@contextlib.asynccontextmanager
async def stdio_transport(
    options: ToolServerOptions, on_end: Callable[[str], None]
) -> AsyncIterator[Streams]:
    """Start a server; `on_end` gets the reason for its end. The exit stops it.

    Raises OSError: it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *options.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=options.directory,
        env=get_default_environment() | options.environment,
        start_new_session=True,
        limit=TOOL_MESSAGE_BYTES_MAX,
    )
    to_session, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as group:
        group.start_soon(_read, process, to_session, on_end)
        group.start_soon(_write, process, from_session)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process)
            group.cancel_scope.cancel()
            for stream in (incoming, outgoing):
                stream.close()


async def _read(
    process: asyncio.subprocess.Process,
    to_session: MemoryObjectSendStream[Incoming],
    on_end: Callable[[str], None],
) -> None:
    assert process.stdout is not None
    why = "it closed its output"
    async with to_session:
        try:
            while line := await process.stdout.readline():
                await to_session.send(_parse(line))
        except ValueError:
            why = f"it sent a message of more than {TOOL_MESSAGE_BYTES_MAX} bytes"
        except (anyio.BrokenResourceError, ConnectionError):
            why = "its session ended"
        on_end(why)  # before calls in progress fail


def _parse(line: bytes) -> Incoming:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _write(
    process: asyncio.subprocess.Process, from_session: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    assert process.stdin is not None
    async with from_session:
        async for message in from_session:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            try:
                await process.stdin.drain()
            except ConnectionError:
                return  # `_read` reports the end


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close its input, wait, then kill it and all its children."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOOL_STOP_SECONDS_MAX):
                await process.wait()
                break
        _signal(process, number)
    _signal(process, signal.SIGKILL)  # its children, if any are left
    await process.wait()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
