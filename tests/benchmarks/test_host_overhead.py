"""What it costs to start a program, as the benchmark measures it."""

import pytest

from benchmarks.host_overhead import benchmark
from tests.support.timing import COUNT, machine_factor

START_US_MAX = 100


@pytest.mark.slow
@pytest.mark.timing
async def test_instance_starts_in_a_tenth_of_a_millisecond_of_processor_time() -> None:
    """Of worker and kernel, to its first message: medians of batches of a thousand instances."""
    factor = machine_factor()
    figures = await benchmark([], None, journal=False, start_rounds=COUNT)
    bound = START_US_MAX * max(factor, machine_factor())
    assert figures["instances"]["start_cpu_us"] < bound
