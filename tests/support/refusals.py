"""Calls that must fail with an errno."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
from symphony_kernel.protocol.errno import Errno, SyscallError


def refused(call: Callable[..., object], *args: object, **given: object) -> Errno:
    """Make a call that must fail; return its errno."""
    with pytest.raises(SyscallError) as caught:
        call(*args, **given)
    return caught.value.errno


@contextlib.contextmanager
def raises_errno(errno: Errno) -> Iterator[None]:
    """Expect the block to fail with this errno."""
    with pytest.raises(SyscallError) as caught:
        yield
    assert caught.value.errno is errno
