"""The native matrix products against float64, and bit for bit in any batch."""

import itertools
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.native.library import Library

from tests.support.executor.native import native_library
from tests.support.executor.native_kernels import (
    Array,
    Float32,
    bytes_per_s,
    flops_per_s,
    keeps_apart,
    lends,
    product,
)
from tests.support.requirements import lacking

KINDS = ["float32", "bfloat16", "widened"]


@pytest.fixture(scope="module")
def library() -> Library:
    return native_library()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, library: Library) -> str:
    """The type of numbers; "widened" is bfloat16 that is multiplied as float32."""
    if request.param == "bfloat16" and not library.computes_bf16:
        lacking("bf16", "this processor does not multiply bfloat16")
    return str(request.param)


def numbers(rows: int, columns: int, kind: str, seed: int) -> Array:
    """Return random numbers as the kernels take them: bfloat16 as the upper half of float32."""
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    return values if kind == "float32" else (values.view(np.uint32) >> 16).astype(np.uint16)


def multiply(
    kind: str, inputs: Array, weights: Array, bias: Float32 | None = None, threads: int = 2
) -> Float32:
    return product(native_library(), inputs, weights, bias, threads, wide=kind == "widened")


def exact(values: Array) -> npt.NDArray[np.float64]:
    if values.dtype == np.float32:
        return values.astype(np.float64)
    return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(rows=517, depth=200, outputs=331, threads=3, biased=False)  # cut by rows and by panels
@given(
    rows=st.integers(1, 70),
    depth=st.integers(1, 90),
    outputs=st.integers(1, 100),
    threads=st.integers(1, 3),
    biased=st.booleans(),
)
def test_product_of_any_sizes_equals_float64(
    kind: str, rows: int, depth: int, outputs: int, threads: int, biased: bool
) -> None:
    inputs, weights = numbers(rows, depth, kind, 1), numbers(outputs, depth, kind, 2)
    bias = numbers(1, outputs, "float32", 3)[0].astype(np.float32) if biased else None
    expected = exact(inputs) @ exact(weights).T + (0.0 if bias is None else bias)
    found = multiply(kind, inputs, weights, bias, threads)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * depth)


@pytest.mark.parametrize(("depth", "outputs"), [(576, 1536), (61, 33), (1537, 64)])
def test_row_in_any_batch_has_the_same_bits(kind: str, depth: int, outputs: int) -> None:
    inputs, weights = numbers(300, depth, kind, 4), numbers(outputs, depth, kind, 5)
    whole = multiply(kind, inputs, weights)
    for begin, end in ((0, 1), (7, 9), (13, 28), (100, 157), (255, 300)):
        for threads in (1, 3):
            part = multiply(kind, inputs[begin:end], weights, threads=threads)
            assert part.tobytes() == whole[begin:end].tobytes(), (begin, end, threads)


@pytest.mark.parametrize("depth", [1, 2, 3, 15, 17, 33, 63, 129])
def test_products_widened_have_the_bits_of_float32(depth: int) -> None:
    for rows in (1, 14, 15, 29):
        inputs, weights = numbers(rows, depth, "widened", 1), numbers(70, depth, "widened", 2)
        left, right = exact(inputs).astype(np.float32), exact(weights).astype(np.float32)
        found = multiply("widened", inputs, weights)
        assert found.tobytes() == multiply("float32", left, right).tobytes()


def test_nan_stays_in_its_row_and_its_output(kind: str) -> None:
    inputs, weights = numbers(20, 40, kind, 8), numbers(50, 40, kind, 9)
    nan = np.float32("nan") if kind == "float32" else np.uint16(0x7FC0)
    inputs[3, 5], weights[44, 0] = nan, nan
    found = multiply(kind, inputs, weights)
    expected = np.zeros(found.shape, np.bool_)
    expected[3], expected[:, 44] = True, True
    assert (np.isnan(found) == expected).all()


def test_measured_rates_of_the_machine_are_plausible(library: Library) -> None:
    for width in (2, 4) if library.computes_bf16 else (4,):
        assert 1e9 < flops_per_s(library, width, 1, 1 << 18) < 1e13
    assert 1e8 < bytes_per_s(library, 2, 16 << 20) < 1e13


def test_products_in_bf16_are_widened_if_faster_or_configured(
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


def test_teams_that_start_and_end_often_never_hang(library: Library) -> None:
    def begin_and_end() -> None:
        for _ in range(1_000):
            flops_per_s(library, 4, threads=8, dots=16)

    # A team may end while its threads are about to sleep; a lost wake-up would be for ever.
    ending = threading.Thread(target=begin_and_end, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()


def check_observed(observe: Callable[[int, int], bool | None], wanted: int, enough: int) -> None:
    """Observe two cores until it succeeds `wanted` times; most must be true.

    `observe` returns None where the machine was too busy. Less than `enough` results say nothing.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        lacking("cores", "there is no other core")
    until = time.monotonic() + 20
    seen: list[bool] = []
    while len(seen) < wanted and time.monotonic() < until:
        found = observe(cores[0], cores[1])
        if found is not None:
            seen.append(found)
    if len(seen) < enough:
        lacking("quiet", "the machine is too busy to see it")
    assert sum(seen) > len(seen) / 2  # threads may be moved or held up without a trace


def test_team_of_a_caller_that_moves_avoids_its_new_core(library: Library) -> None:
    """The other threads stayed on the caller's new core, and its old core was idle."""
    turns = itertools.cycle([True, False])

    def observe(first: int, second: int) -> bool | None:
        there = next(turns)
        return keeps_apart(library, first if there else second, second if there else first)

    check_observed(observe, wanted=6, enough=6)


@pytest.mark.parametrize("late", [False, True])
def test_core_that_is_lent_is_free_until_it_is_needed(library: Library, late: bool) -> None:
    """While masks are made, one of the step's threads leaves them its core for a short time."""
    check_observed(lambda *cores: lends(library, cores, late=late), wanted=5, enough=1)
