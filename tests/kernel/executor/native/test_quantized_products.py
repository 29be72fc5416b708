"""Native products of weights in 4 and 8 bits: against float64, and bit for bit in any batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.models.quantization import QuantizedMatrix, quantize
from symphony_kernel.executor.native.library import Library

from tests.support.executor.native import native_library
from tests.support.executor.native_kernels import Array, Float32, product, rounded_inputs

FORMATS = [(4, 32, False), (4, 32, True), (4, 128, False), (4, 128, True), (8, 32, False),
           (8, 128, False)]  # fmt: skip


@pytest.fixture(scope="module")
def library() -> Library:
    return native_library()


def numbers(rows: int, columns: int, seed: int) -> Float32:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def weights(
    outputs: int, depth: int, form: tuple[int, int, bool], seed: int = 2
) -> QuantizedMatrix:
    bits, group, minimums = form
    matrix = quantize(torch.from_numpy(numbers(outputs, depth, seed)), bits, group)
    if not minimums:
        return matrix
    # What no symmetric matrix has: minimums that are no multiple of the scales.
    return replace(matrix, minimums=(matrix.scales.float() * -6.7 + 0.125).half())


@settings(max_examples=60, deadline=None)
@example(rows=130, depth=200, outputs=331, threads=3, biased=False, form=(4, 128, True))
@given(
    rows=st.integers(1, 40),
    depth=st.integers(1, 300),
    outputs=st.integers(1, 100),
    threads=st.integers(1, 3),
    biased=st.booleans(),
    form=st.sampled_from(FORMATS),
)
def test_quantized_product_of_any_sizes_equals_float64(
    rows: int, depth: int, outputs: int, threads: int, biased: bool, form: tuple[int, int, bool]
) -> None:
    inputs, matrix = numbers(rows, depth, 1), weights(outputs, depth, form)
    bias = numbers(1, outputs, 3)[0] if biased else None
    expected = rounded_inputs(inputs, form[1]) @ matrix.dequantize(torch.float64).numpy().T
    expected += 0.0 if bias is None else bias
    found = product(native_library(), inputs, matrix, bias, threads)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6 * depth)


def test_quantized_product_is_near_the_one_of_unrounded_inputs(library: Library) -> None:
    inputs, matrix = numbers(9, 576, 1), weights(64, 576, (4, 32, False))
    expected = inputs @ matrix.dequantize().numpy().T
    found = product(library, inputs, matrix)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 1e-4 < error < 0.01


@pytest.mark.parametrize("form", FORMATS)
def test_quantized_row_in_any_batch_has_the_same_bits(
    library: Library, form: tuple[int, int, bool]
) -> None:
    inputs, matrix = numbers(300, 577, 4), weights(70, 577, form)
    whole = product(library, inputs, matrix)
    for begin, end in ((0, 1), (7, 9), (13, 21), (100, 157), (255, 300)):
        for threads in (1, 3):
            part = product(library, inputs[begin:end], matrix, threads=threads)
            assert part.tobytes() == whole[begin:end].tobytes(), (begin, end, threads)


def test_quantized_product_of_bfloat16_has_the_bits_of_float32(library: Library) -> None:
    bits = (numbers(20, 100, 1).view(np.uint32) >> 16).astype(np.uint16)
    same = (bits.astype(np.uint32) << 16).view(np.float32)
    matrix = weights(40, 100, (8, 32, False))
    expected = product(library, same, matrix).tobytes()
    assert product(library, bits, matrix).tobytes() == expected
    assert product(library, bits, matrix, wide=True).tobytes() == expected


def test_quantized_largest_integers_do_not_saturate(library: Library) -> None:
    """Sums of four products of bytes exceed 16 bits, which some instructions clamp to."""
    signs = np.where(np.arange(64) % 3 == 0, -1, 1).astype(np.float32)
    for bits in (4, 8):
        matrix = quantize(torch.from_numpy(signs * 127)[None], bits, 32)
        for sign in (signs, -signs, np.ones_like(signs)):
            found: Array = product(library, sign[None] * 127, matrix)
            exact = sign.astype(np.float64) @ matrix.dequantize().numpy()[0] * 127
            np.testing.assert_allclose(found[0, 0], exact, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_input_that_is_not_finite_stays_in_its_row(library: Library, bad: float) -> None:
    inputs, matrix = numbers(20, 40, 8), weights(50, 40, (4, 32, False))
    inputs[3, 5] = bad
    finite = np.isfinite(product(library, inputs, matrix))
    assert not finite[3].any()
    assert finite[np.arange(20) != 3].all()


def test_inputs_that_are_zero_or_tiny_are_zero(library: Library) -> None:
    inputs, matrix = np.zeros((3, 64), np.float32), weights(40, 64, (4, 32, True))
    inputs[1, :] = 1e-39  # denormal
    inputs[2, 0] = 1.0
    found = product(library, inputs, matrix)
    assert (found[:2] == 0).all()
    np.testing.assert_allclose(found[2], matrix.dequantize().numpy()[:, 0], rtol=1e-5)
