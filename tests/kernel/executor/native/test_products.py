"""The native matrix products against float64, and the same bits in any company."""

import os
import threading
import time

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.native.library import Library

from tests.support.executor.native import native_library
from tests.support.executor.native_kernels import (
    bytes_per_s,
    flops_per_s,
    keeps_apart,
    lends,
    product,
)

Array = npt.NDArray[np.generic]
KINDS = ["float32", "bfloat16", "widened"]


@pytest.fixture(scope="module")
def library() -> Library:
    return native_library()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, library: Library) -> str:
    """The type of numbers; "widened" is bfloat16 that is multiplied as float32."""
    if request.param == "bfloat16" and not library.computes_bf16:
        pytest.skip("this processor does not multiply bfloat16")
    return str(request.param)


def numbers(rows: int, columns: int, kind: str, seed: int) -> Array:
    """Return random numbers as the kernels take them: bfloat16 as the upper half of float32."""
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    return values if kind == "float32" else (values.view(np.uint32) >> 16).astype(np.uint16)


def exact(values: Array) -> npt.NDArray[np.float64]:
    if values.dtype == np.float32:
        return values.astype(np.float64)
    return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.integers(1, 70),
    depth=st.integers(1, 90),
    outputs=st.integers(1, 100),
    threads=st.integers(1, 3),
    biased=st.booleans(),
)
def test_a_product_is_what_float64_says(
    library: Library, kind: str, rows: int, depth: int, outputs: int, threads: int, biased: bool
) -> None:
    inputs, weights = numbers(rows, depth, kind, 1), numbers(outputs, depth, kind, 2)
    bias = numbers(1, outputs, "float32", 3)[0].astype(np.float32) if biased else None
    expected = exact(inputs) @ exact(weights).T + (0.0 if bias is None else bias)
    found = product(library, inputs, weights, bias, threads, wide=kind == "widened")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * depth)


@pytest.mark.parametrize(("depth", "outputs"), [(576, 1536), (61, 33), (1537, 64)])
def test_a_row_has_the_same_bits_in_any_company(
    library: Library, kind: str, depth: int, outputs: int
) -> None:
    inputs, weights = numbers(300, depth, kind, 4), numbers(outputs, depth, kind, 5)
    whole = product(library, inputs, weights, threads=2, wide=kind == "widened")
    for begin, end in ((0, 1), (7, 9), (13, 28), (100, 157), (255, 300)):
        for threads in (1, 3):
            some = inputs[begin:end]
            part = product(library, some, weights, threads=threads, wide=kind == "widened")
            assert part.tobytes() == whole[begin:end].tobytes(), (begin, end, threads)


@pytest.mark.parametrize("depth", [1, 2, 3, 15, 17, 33, 63, 129])
def test_widened_products_are_those_of_float32(library: Library, depth: int) -> None:
    for rows in (1, 14, 15, 29):
        inputs, weights = numbers(rows, depth, "widened", 1), numbers(70, depth, "widened", 2)
        left, right = exact(inputs).astype(np.float32), exact(weights).astype(np.float32)
        found = product(library, inputs, weights, threads=2, wide=True)
        assert found.tobytes() == product(library, left, right, threads=2).tobytes()


def test_large_products_are_cut_by_rows_and_panels_without_a_seam(
    library: Library, kind: str
) -> None:
    inputs, weights = numbers(517, 200, kind, 6), numbers(331, 200, kind, 7)
    found = product(library, inputs, weights, threads=3, wide=kind == "widened")
    np.testing.assert_allclose(found, exact(inputs) @ exact(weights).T, rtol=1e-4, atol=2e-3)


def test_what_is_not_a_number_stays_in_its_row_and_its_output(library: Library, kind: str) -> None:
    inputs, weights = numbers(20, 40, kind, 8), numbers(50, 40, kind, 9)
    nan = np.float32("nan") if kind == "float32" else np.uint16(0x7FC0)
    inputs[3, 5], weights[44, 0] = nan, nan
    found = product(library, inputs, weights, threads=2, wide=kind == "widened")
    expected = np.zeros(found.shape, np.bool_)
    expected[3], expected[:, 44] = True, True
    assert (np.isnan(found) == expected).all()


def test_the_rates_of_the_machine_are_sane(library: Library) -> None:
    for width in (2, 4) if library.computes_bf16 else (4,):
        assert 1e9 < flops_per_s(library, width, 1, 1 << 18) < 1e13
    assert 1e8 < bytes_per_s(library, 2, 16 << 20) < 1e13


def test_bfloat16_is_widened_where_that_is_faster_or_asked_for(
    library: Library, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for asked, widens in (("fp32", True), ("bf16", not library.computes_bf16)):
        monkeypatch.setenv("SYMPHONY_PRODUCTS", asked)
        assert library.widens == widens
    caplog.clear()
    monkeypatch.setenv("SYMPHONY_PRODUCTS", "int4")
    chosen = library.widens
    assert "SYMPHONY_PRODUCTS is 'int4', not bf16 or fp32" in caplog.text
    monkeypatch.delenv("SYMPHONY_PRODUCTS")
    assert library.widens == chosen
    if not library.computes_bf16:
        assert chosen
        return
    pairs, wide = (max(flops_per_s(library, w, 1, 24 << 10) for _ in range(20)) for w in (2, 4))
    # No processor is known where they are alike.
    assert chosen == (wide > pairs)


def test_teams_end_as_often_as_they_begin(library: Library) -> None:
    def begin_and_end() -> None:
        for _ in range(1_000):
            flops_per_s(library, 4, threads=8, dots=16)

    # Ended at any moment, also while its threads are about to sleep; they never wake up otherwise.
    ending = threading.Thread(target=begin_and_end, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()


def test_a_caller_who_is_moved_within_a_step_does_not_meet_his_team_again(library: Library) -> None:
    """Its other threads had to stay where the caller is now, and his old core stood idle."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("there is no other core")
    first, second, *_ = cores
    until = time.monotonic() + 20
    seen: list[bool] = []
    while len(seen) < 6 and time.monotonic() < until:
        for start, to in ((first, second), (second, first)):
            apart = keeps_apart(library, start, to)
            if apart is not None:  # the system has let it be seen
                seen.append(apart)
    if len(seen) < 6:
        pytest.skip("the system moves threads too often to see it")
    assert sum(seen) > len(seen) / 2  # it may have moved him there and back unseen


@pytest.mark.parametrize("late", [False, True])
def test_a_core_that_is_lent_is_free_until_it_is_asked_for(library: Library, late: bool) -> None:
    """While masks are made one of the step's threads leaves them its core, but not for long."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("there is no other core")
    until = time.monotonic() + 20
    seen: list[bool] = []
    while len(seen) < 5 and time.monotonic() < until:
        lent = lends(library, (cores[0], cores[1]), late=late)
        if lent is not None:  # the machine has let it be seen
            seen.append(lent)
    if not seen:
        pytest.skip("the machine is too busy to see it")
    assert sum(seen) > len(seen) / 2  # its thread may have been held up with a task in its hand
