"""Handles: numbers that the worker chooses and the kernel checks."""

from typing import Any

import pytest
from symphony_kernel.processes.handles import APPEND, READ, TRUNCATE, HandleTable
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import INSTANCE_HANDLES_MAX

from tests.support.kernel.page_device import make_account, make_kvfs
from tests.support.refusals import refused

FIRST = 1 << 16


def table_with(number: int, rights: int) -> HandleTable:
    kvfs = make_kvfs(4)
    table = HandleTable()
    table.insert(table.check_new(number), kvfs.create("t", make_account(kvfs)), rights)
    return table


@pytest.mark.parametrize(
    "number",
    [
        0, -1, FIRST - 1, FIRST, FIRST + (1 << 16), FIRST + INSTANCE_HANDLES_MAX, 1 << 31, 1 << 63,
        True, "x", None, 1.0, b"", [FIRST], {},
    ],
)  # fmt: skip
def test_new_handle_must_be_a_free_number_in_range(number: Any) -> None:
    table = table_with(FIRST, READ)
    assert refused(table.check_new, number) is Errno.EBADF
    assert table.check_new(FIRST + 1) == FIRST + 1


@pytest.mark.parametrize(
    "number", [0, -1, 1, FIRST + 1, FIRST + (1 << 16), 1 << 64, True, "x", None, 1.5, b"", [], {}]
)
def test_unknown_handle_is_refused(number: Any) -> None:
    table = table_with(FIRST, READ)
    for take in (table.get, table.remove):
        assert refused(take, number) is Errno.EBADF
    assert len(table) == 1


def test_handle_without_a_right_is_refused() -> None:
    table = table_with(FIRST, READ | APPEND)
    assert table.get(FIRST, READ | APPEND).rights == READ | APPEND
    assert refused(table.get, FIRST, READ | TRUNCATE) is Errno.EACCES


def test_closed_handle_stays_closed_and_frees_its_index() -> None:
    table = table_with(FIRST, READ)
    handle = table.remove(FIRST)
    with pytest.raises(SyscallError):
        table.get(FIRST)
    again = FIRST + (1 << 16)
    table.insert(table.check_new(again), handle.file, READ)
    assert [h.number for h in table] == [again]
    assert [h.number for h in table.clear()] == [again]
    assert len(table) == 0
