"""The log format of all roles: one line per record, safe against log injection.

Log messages contain paths, names and errors of requests. A control character in them could forge a
line or control a terminal, so each is written as its escape. Lines of a traceback are indented, so
that none looks like a record.
"""

import logging
import sys
from types import TracebackType

_Error = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class LineFormatter(logging.Formatter):
    """Formats a record as one line, and an exception as lines below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: _Error) -> str:  # noqa: N802 - logging's name
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {printable(line)}" for line in lines)


def printable(text: str) -> str:
    """Return the text with an escape for each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def log_to_stderr(level: int | str, form: str) -> None:
    """Log to stderr. `form` is a format string of `logging`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])
