"""What can go wrong in an attached program.

SymphonyError
├── CallError            a call failed; a subclass for each errno of the ABI
│   ├── ENOENT, EIO, ... EBUSY, ... ECANCELED
├── RunEnded             the run has ended, so no call can be made
├── ConnectionLost       the connection has gone; a parked run may be taken up again
└── AttachError          the server did not start a run, or let one be taken up
"""


class SymphonyError(Exception):
    """Any error of an attached program."""


class AttachError(SymphonyError):
    """The server refused to start a run; `status` is of HTTP, 0 where there was no answer."""

    def __init__(self, words: str, status: int = 0) -> None:
        super().__init__(words)
        self.status = status


class RunEnded(SymphonyError):
    """The run has ended: `status` as of any run, and the reason."""

    def __init__(self, run: str, status: str, reason: str = "") -> None:
        super().__init__(f"the run {run} has ended: {reason or status}")
        self.run, self.status, self.reason = run, status, reason


class ConnectionLost(SymphonyError):
    """The connection to the server has gone before the run has ended."""


class CallError(SymphonyError):
    """A call failed: `call` is its name in the ABI, `errno` its number, `words` the server's."""

    errno = 0

    def __init__(self, call: str, words: str = "", errno: int | None = None) -> None:
        self.errno = type(self).errno if errno is None else errno
        self.call, self.words = call, words
        kind = type(self)
        meaning = (kind.__doc__ or "").partition(".")[0].lower()
        name = kind.__name__ if kind is not CallError else f"errno {self.errno}"
        super().__init__(f"{call}: {name} ({words or meaning})")


class ENOENT(CallError):
    """No such name."""

    errno = 2


class EIO(CallError):
    """The server failed at it."""

    errno = 5


class EBADF(CallError):
    """No such handle or ticket."""

    errno = 9


class EAGAIN(CallError):
    """Not now."""

    errno = 11


class ENOMEM(CallError):
    """Out of pages or memory."""

    errno = 12


class EACCES(CallError):
    """Not allowed."""

    errno = 13


class EFAULT(CallError):
    """Outside the program's memory."""

    errno = 14


class EBUSY(CallError):
    """In use."""

    errno = 16


class EEXIST(CallError):
    """The name is taken."""

    errno = 17


class EINVAL(CallError):
    """Invalid argument."""

    errno = 22


class EFBIG(CallError):
    """Too large."""

    errno = 27


class ENOSPC(CallError):
    """No room."""

    errno = 28


class EPIPE(CallError):
    """The other side has closed."""

    errno = 32


class ENAMETOOLONG(CallError):
    """The name is too long."""

    errno = 36


class ENOSYS(CallError):
    """Not supported by this server."""

    errno = 38


class ETIMEDOUT(CallError):
    """Timed out."""

    errno = 110


class EDQUOT(CallError):
    """Over quota."""

    errno = 122


class ECANCELED(CallError):
    """Cancelled."""

    errno = 125


_KINDS = {kind.errno: kind for kind in CallError.__subclasses__()}


def call_error(call: str, errno: int, words: str = "") -> CallError:
    """Return the exception of an errno; a newer server may have one without a class."""
    kind = _KINDS.get(errno)
    return CallError(call, words, errno) if kind is None else kind(call, words)
