"""The errors of a client.

ClientError
+-- ConnectionFailed   the server cannot be reached, or went away before it had answered
+-- ServerError        the server refused; `problem` is its problem document
"""

from typing import Any


class ClientError(Exception):
    """Base class of a client's errors."""


class ConnectionFailed(ClientError):  # noqa: N818 - states what happened
    """The server cannot be reached, or went away before it had answered.

    `delivered` is false where no connection was made, so that the server did nothing.
    """

    def __init__(self, words: str, *, delivered: bool = True) -> None:
        super().__init__(words)
        self.delivered = delivered


class ServerError(ClientError):
    """The server refused. `problem` is its problem document, `retry_after` in seconds."""

    def __init__(self, status: int, problem: dict[str, Any], retry_after: float | None) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title") or f"status {status}"))
        self.status = status
        self.problem = problem
        self.retry_after = retry_after

    @property
    def kind(self) -> str:
        """The problem's type, such as `not-found`: docs/reference/errors.md lists them."""
        return str(self.problem.get("type", "")).rpartition(":")[2]
