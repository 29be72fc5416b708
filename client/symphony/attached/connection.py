"""The WebSocket of an attached program: the one module that knows how it is spoken.

Binary frames are the program's: calls go out, answers come in. Text frames are the server's own:
the first names the run, the last says how it has ended.
"""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from symphony.attached.errors import AttachError
from symphony.client.errors import ClientError
from symphony.client.refusals import no_redirects, problem_of

MESSAGE_BYTES_MAX = 1 << 20  # of one frame to the server
_FRAME_BYTES_MAX = 1 << 20
_CLOSE_SECONDS = 2.0
# A path of a server that has no such route answers so.
_OLD = "this server has no attached programs: it is older than this package"


class Connection:
    """An open connection to a run."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        socket: aiohttp.ClientWebSocketResponse,
        run: str,
    ) -> None:
        self._session, self._socket = session, socket
        self.run = run
        self.outcome: Mapping[str, Any] = {}  # how the run has ended, once that was said

    @classmethod
    async def open(cls, url: str, key: str, query: Mapping[str, str]) -> "Connection":
        """Start a run or take one up; AttachError: the server refuses, or is not there."""
        session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"}, trace_configs=[no_redirects()]
        )
        try:
            timeout = aiohttp.ClientWSTimeout(ws_close=_CLOSE_SECONDS)
            socket = await session.ws_connect(
                f"{url}/v1/attached", params=query, timeout=timeout, max_msg_size=_FRAME_BYTES_MAX
            )
            greeting = await socket.receive_json()
            return cls(session, socket, str(greeting["run"]))
        except aiohttp.WSServerHandshakeError as error:
            refusal = await _refusal(session, url, query, error.status)
            await session.close()
            raise refusal from None
        except ClientError as error:  # a redirection
            await session.close()
            raise AttachError(str(error)) from error
        except (aiohttp.ClientError, OSError, TypeError, KeyError) as error:
            await session.close()
            raise AttachError(f"no connection to {url}: {error}") from error
        except BaseException:
            await session.close()
            raise

    async def send(self, frame: bytes) -> None:
        """Send a frame of calls; ConnectionError: the connection has gone."""
        await self._socket.send_bytes(frame)

    async def receive(self) -> bytes | None:
        """Return the next frame of answers, None after the last."""
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                return bytes(message.data)
            if message.type is not aiohttp.WSMsgType.TEXT:
                return None
            self.outcome = json.loads(message.data)

    @property
    def words(self) -> str:
        """Why the server has closed, where it says so."""
        if self._socket.close_code == 4001:
            return "another client has taken the run up"
        return ""

    async def close(self) -> None:
        await self._socket.close()
        await self._session.close()


async def _refusal(
    session: aiohttp.ClientSession, url: str, query: Mapping[str, str], status: int
) -> AttachError:
    """Ask again without a handshake, whose refusal has no words."""
    words = ""
    try:
        async with session.get(f"{url}/v1/attached", params=query) as response:
            problem = await problem_of(response)
            if response.status == status and problem is not None:
                words = str(problem.get("detail") or "")
    except (ClientError, aiohttp.ClientError, OSError, ValueError):
        pass  # the status says enough
    if status == 404 and "run" not in query:
        words = _OLD
    return AttachError(words or f"the server answers {status}: try again later", status)
