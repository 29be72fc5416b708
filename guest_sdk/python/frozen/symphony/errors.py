"""What can go wrong: an exception for each errno of the ABI."""

import _lip


class SymphonyError(Exception):
    """Any error of a call."""


class CallError(SymphonyError):
    """A call failed: `call` is its name in the ABI, `errno` its number, `words` the server's."""

    errno = 0
    meaning = ""

    def __init__(self, call, words="", errno=None):
        self.call, self.words = call, words
        kind = type(self)
        self.errno = kind.errno if errno is None else errno
        name = kind.__name__ if kind is not CallError else "errno %d" % self.errno
        super().__init__("%s: %s (%s)" % (call, name, words or kind.meaning))


def _kind(name, errno, meaning):
    return type(name, (CallError,), {"errno": errno, "meaning": meaning})


ENOENT = _kind("ENOENT", 2, "no such name")
EIO = _kind("EIO", 5, "the server failed at it")
EBADF = _kind("EBADF", 9, "no such handle or ticket")
EAGAIN = _kind("EAGAIN", 11, "not now")
ENOMEM = _kind("ENOMEM", 12, "out of pages or memory")
EACCES = _kind("EACCES", 13, "not allowed")
EFAULT = _kind("EFAULT", 14, "outside the program's memory")
EBUSY = _kind("EBUSY", 16, "in use")
EEXIST = _kind("EEXIST", 17, "the name is taken")
EINVAL = _kind("EINVAL", 22, "invalid argument")
EFBIG = _kind("EFBIG", 27, "too large")
ENOSPC = _kind("ENOSPC", 28, "no room")
EPIPE = _kind("EPIPE", 32, "the other side has closed")
ENAMETOOLONG = _kind("ENAMETOOLONG", 36, "the name is too long")
ENOSYS = _kind("ENOSYS", 38, "not supported by this server")
ETIMEDOUT = _kind("ETIMEDOUT", 110, "timed out")
EDQUOT = _kind("EDQUOT", 122, "over quota")
ECANCELED = _kind("ECANCELED", 125, "cancelled")

_KINDS = {
    kind.errno: kind
    for kind in (
        ENOENT, EIO, EBADF, EAGAIN, ENOMEM, EACCES, EFAULT, EBUSY, EEXIST, EINVAL, EFBIG, ENOSPC,
        EPIPE, ENAMETOOLONG, ENOSYS, ETIMEDOUT, EDQUOT, ECANCELED,
    )
}  # fmt: skip


def call_error(call, errno):
    """Return the exception of an errno, with the server's words where it has any."""
    kind, words = _KINDS.get(errno), _lip.last_error()
    return CallError(call, words, errno) if kind is None else kind(call, words)


_lip.set_error(call_error)
