"""Steps as C reads them: arrays that are filled again equal fresh ones."""

import ctypes
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.base import Row
from symphony_kernel.executor.native.sampling import NativeSampler
from symphony_kernel.executor.native.step import PreparedStep, StepRows, StepTokens, flat_step
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions, Sampling

from tests.support.executor.models import make_row
from tests.support.executor.native import native_library

VOCAB = 64
OPTIONS = [
    DEFAULT,
    PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=0.8)),
    PredOptions(logprobs=3),
    PredOptions(get=Get.NONE),
    PredOptions(get=Get.OF, of=(VOCAB,)),  # cannot be answered
]


@pytest.fixture(scope="module")
def sampler() -> Iterator[NativeSampler]:
    sampler = NativeSampler(native_library(), VOCAB)
    yield sampler
    sampler.close()


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Mostly steps that only decode, of any size."""
    decodes = draw(st.booleans())
    made = []
    for _ in range(draw(st.sampled_from([1, 1, 2, 5, 40]))):
        count = 1 if decodes else draw(st.integers(1, 4))
        options = draw(st.sampled_from(OPTIONS[:3] if decodes else OPTIONS))
        start = draw(st.integers(0, 100))
        table = np.arange(draw(st.integers(0, 500)), 600, dtype=np.int32)[
            : (start + count) // 16 + 1
        ]
        ids = draw(st.lists(st.integers(0, VOCAB - 1), min_size=count, max_size=count))
        made.append(make_row(ids, table, start, options, seed=draw(st.integers(0, 2**64 - 1))))
    return made


def _read(address: int | None, count: int, kind: npt.DTypeLike) -> list[int]:
    if address is None:
        return []
    size = count * np.dtype(kind).itemsize
    found: list[int] = np.frombuffer(ctypes.string_at(address, size), kind).tolist()
    return found


def _arrays(rows: StepRows, tokens: StepTokens) -> dict[str, list[int]]:
    offsets = _read(rows.offsets, rows.rows + 1, np.int32)
    tables = _read(rows.table_offsets, rows.rows + 1, np.int32)
    return {
        "offsets": offsets,
        "starts": _read(rows.starts, rows.rows, np.int32),
        "table_offsets": tables,
        "tables": _read(rows.tables, tables[-1], np.int32),
        "positions": _read(rows.positions, rows.tokens, np.int32),
        "parents": _read(rows.parents, rows.tokens, np.int32),
        "tokens": _read(tokens.tokens, rows.tokens, np.uint32),
        "wanted": _read(tokens.wanted, tokens.wanted_count, np.int32),
    }


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(rows(), min_size=1, max_size=5))
def test_step_that_is_filled_again_equals_a_fresh_one(
    sampler: NativeSampler, steps: list[list[Row]]
) -> None:
    kept = PreparedStep(sampler, {})
    for step in steps:
        kept.fill(step)
        fresh = flat_step(step)
        tokens = StepTokens(fresh.tokens.ctypes.data, fresh.wanted.ctypes.data, len(fresh.wanted))
        found = StepRows.from_address(kept.rows), StepTokens.from_address(kept.tokens)
        assert _arrays(*found) == _arrays(fresh.rows, tokens)
        assert kept.positions.tolist() == fresh.positions.tolist()
        assert kept.wanted_count == kept.places.count == len(fresh.wanted)


def test_step_takes_its_tokens_later(sampler: NativeSampler) -> None:
    step = PreparedStep(sampler, {})
    table = np.arange(1, dtype=np.int32)
    step.fill([make_row([0], table, 3, DEFAULT), make_row([0], table, 5, DEFAULT)])
    step.set_tokens([7, 9])
    assert _read(StepTokens.from_address(step.tokens).tokens, 2, np.uint32) == [7, 9]
