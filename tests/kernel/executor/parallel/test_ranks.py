"""Ranks that cannot start or fail, and the calls that they get."""

from io import BytesIO
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.parallel.__main__ import _run
from symphony_kernel.executor.parallel.calls import pack, pack_rows, receive, unpack_rows
from symphony_kernel.executor.parallel.network import execute_call
from symphony_kernel.executor.parallel.rank_network import device_of
from symphony_kernel.executor.parallel.ranks import Parallel, Ranks, Share
from symphony_kernel.protocol.errno import KernelBug

from tests.support.executor.models import make_row, random_tokens


def share(directory: Path, **given: Any) -> Share:
    values = {"pages": 4, "places": 4, "threads": 1, "rank": 1, "ranks": 2} | given
    return Share(str(directory), "float32", "cpu", "none", **values)


def test_rank_that_cannot_load_its_shard_says_why(tmp_path: Path) -> None:
    replies = BytesIO()
    calls: SimpleQueue[list[Any]] = SimpleQueue()
    assert _run(share(tmp_path / "nothing"), calls, replies) == 2
    replies.seek(0)
    reply = receive(replies)
    assert reply is not None
    assert reply[:2] == [False, "CheckpointError"]
    assert "is not a directory" in reply[2]


def test_ranks_without_a_gpu_each_are_refused(tmp_path: Path) -> None:
    wanted = Share(str(tmp_path), "bfloat16", "cuda", "none", 4, 4, None, rank=99, ranks=100)
    with pytest.raises(CheckpointError, match="100 ranks need as many GPUs"):
        device_of(wanted)


def test_failure_in_lockstep_loses_the_model_and_is_reported_once(tmp_path: Path) -> None:
    reported: list[str] = []
    ranks = Ranks(Parallel(2, tmp_path, reported.append))
    assert ranks.meeting.parent.parent == tmp_path
    assert ranks.meeting.parent.stat().st_mode & 0o077 == 0
    for _ in range(2):
        with pytest.raises(ValueError, match="no such page"), ranks.in_lockstep():
            raise ValueError("no such page")
    assert len(reported) == 1
    assert "no such page" in reported[0]
    ranks.release()
    assert not list(tmp_path.iterdir())


def test_rows_that_are_packed_are_received_unchanged() -> None:
    table = np.array([7, 3, 5], np.int32)
    rows = [
        make_row(random_tokens(5), table, 17, parents=[-1, 0, 0, 2, -1], positions=[4, 5, 5, 6, 4]),
        make_row(random_tokens(1, 2), table[:1], 3),
        make_row(random_tokens(3, 3), table[1:2]),
    ]
    rows[2].places = np.empty(0, np.int32)
    calls = BytesIO(pack("forward", *pack_rows(rows)))
    call = receive(calls)
    assert call is not None
    assert receive(calls) is None
    found = unpack_rows(call[1:])
    assert call[0] == "forward"
    assert [row.start for row in found] == [17, 3, 0]
    for row, given in zip(found, rows, strict=True):
        for name in ("tokens", "positions", "block_table", "places"):
            mine, theirs = getattr(row, name), getattr(given, name)
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
    assert found[0].parents is not None
    np.testing.assert_array_equal(found[0].parents, rows[0].parents)
    assert found[1].parents is found[2].parents is None


def test_call_that_is_cut_short_is_an_end() -> None:
    whole = pack("copy", np.zeros((2, 3), np.int64))
    for length in (0, 2, 4, len(whole) - 1):
        assert receive(BytesIO(whole[:length])) is None
    call = receive(BytesIO(whole))
    assert call is not None
    assert (call[1].dtype, call[1].shape) == (np.int64, (2, 3))


def test_call_that_is_unknown_is_a_bug() -> None:
    network: Any = SimpleNamespace(pages=None)
    with pytest.raises(KernelBug, match="unknown call 'dance'"):
        execute_call(network, ["dance"])
