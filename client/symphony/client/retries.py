"""When a request is made again: what may be repeated, how often, and after how long."""

import random

from symphony.client.errors import ConnectionFailed, ServerError

RETRIES_DEFAULT = 4
_PAUSE_SECONDS = 0.1  # before the first retry; doubled for each further one
_PAUSE_SECONDS_MAX = 5.0
_WAIT_SECONDS_MAX = 60.0  # of all pauses of a request together
_REFUSED_FOR_NOW = frozenset({409, 429, 503})  # with Retry-After; nothing has happened


class Pauses:
    """The pauses between the attempts of one request."""

    def __init__(self, retries: int) -> None:
        self._left = retries
        self._next = _PAUSE_SECONDS
        self._seconds_left = _WAIT_SECONDS_MAX

    def after(self, error: ServerError | ConnectionFailed, *, repeatable: bool) -> float | None:
        """Return the seconds to wait before the next attempt, None if there is to be none.

        A refusal with Retry-After is waited for at least that long. A request that may have
        reached the server is made again only if it is `repeatable`. Pauses have a random part, so
        that clients that failed together do not come back together.
        """
        least = 0.0
        if isinstance(error, ServerError):
            if error.status not in _REFUSED_FOR_NOW or error.retry_after is None:
                return None
            least = error.retry_after
        elif error.delivered and not repeatable:
            return None
        if self._left <= 0:
            return None
        pause = least + self._next * random.uniform(0.5, 1)  # noqa: S311 - no secret
        if pause > self._seconds_left:
            return None
        self._left -= 1
        self._seconds_left -= pause
        self._next = min(2 * self._next, _PAUSE_SECONDS_MAX)
        return pause
