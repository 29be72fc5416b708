"""Requests under way, by the key that they came with: when a key goes, so do they.

A connection is cut as if its client had gone, which every handler knows: nothing more is read from
it or written to it, and a run that was only for that client ends.
"""

import contextlib
from collections.abc import Iterable, Iterator

from aiohttp import web


class Visits:
    """The requests under way."""

    def __init__(self) -> None:
        # By their identity: a request is a mapping, and those cannot be in a set.
        self._keys: dict[str, dict[int, web.BaseRequest]] = {}

    @contextlib.contextmanager
    def visit(self, key: str, request: web.BaseRequest) -> Iterator[None]:
        """Have a request be one of a key's."""
        visits = self._keys.setdefault(key, {})
        visits[id(request)] = request
        try:
            yield
        finally:
            del visits[id(request)]
            if not visits and self._keys.get(key) is visits:
                del self._keys[key]

    def end(self, keys: Iterable[str], but: web.BaseRequest | None = None) -> int:
        """Cut the connections of these keys' requests, but for one; return how many there were."""
        ended = 0
        for key in keys:
            for request in tuple(self._keys.get(key, {}).values()):
                if request is but or request.transport is None:
                    continue
                request.transport.abort()
                ended += 1
        return ended

    def statistics(self) -> dict[str, int]:
        """Return how many requests are under way."""
        return {"requests": sum(map(len, self._keys.values()))}
