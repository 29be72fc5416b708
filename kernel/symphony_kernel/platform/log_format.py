"""Lines of a role's log: a record is one line, whatever strangers have written into it.

What is logged repeats paths, names and errors of requests. A control character among them could end
the line and begin a made-up one, or tell a terminal to do something: each is written as its escape.
Lines of a traceback are indented, so that none of them looks like a record's.
"""

import logging
import sys
from types import TracebackType

_Error = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class LineFormatter(logging.Formatter):
    """Formats a record as one line, and an exception as lines below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the record's line."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: _Error) -> str:  # noqa: N802 - logging's name
        """Return the lines of an exception."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {printable(line)}" for line in lines)


def printable(text: str) -> str:
    """Return a text with an escape for each character that does not show."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def log_to_stderr(level: int | str, form: str) -> None:
    """Have this process's log go to stderr, in `logging`'s form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])
