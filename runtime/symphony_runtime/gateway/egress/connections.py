"""Connections for programs' HTTP requests, as the library makes them but for one thing.

It passes over answers of status 1xx however many a server sends, which may be without end.
"""

import functools
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from symphony_kernel.protocol.limits import HTTP_INFORMATIONAL_MAX


class BoundedConnector(aiohttp.TCPConnector):
    """Makes connections on which few answers of status 1xx come before the one that counts."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        make = functools.partial(_Answers, loop=self._loop)
        self._factory = cast("functools.partial[ResponseHandler]", make)


class _Answers(ResponseHandler):
    _informational = 0

    async def read(self) -> Any:
        message, payload = await super().read()
        if message.code >= 200:
            self._informational = 0
            return message, payload
        self._informational += 1
        if self._informational > HTTP_INFORMATIONAL_MAX:
            raise aiohttp.ClientPayloadError("too many answers of status 1xx")
        return message, payload
