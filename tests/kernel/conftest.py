"""What the kernel's tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sockets import temporary_socket_folder


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder with room for a socket's name, which pytest's own may not have."""
    with temporary_socket_folder() as folder:
        yield folder
