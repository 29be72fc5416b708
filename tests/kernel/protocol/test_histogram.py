"""Histograms: bounds belong to their buckets; values above the last are counted, too."""

from symphony_kernel.protocol import histogram
from symphony_kernel.protocol.histogram import Histogram


def test_value_is_counted_in_the_first_bucket_that_holds_it() -> None:
    counted = Histogram((1.0, 2.0, 5.0))
    for value in (0.5, 1.0, 1.1, 5.0, 6.0):
        counted.add(value)
    counted.add(2.0, 3)
    assert counted.view() == {
        "bounds": [1.0, 2.0, 5.0],
        "counts": [2, 4, 1, 1],
        "sum": 0.5 + 1.0 + 1.1 + 5.0 + 6.0 + 6.0,
    }
    assert sum(counted.counts) == 8


def test_histogram_bounds_ascend() -> None:
    found = [value for name, value in vars(histogram).items() if name.isupper()]
    assert len(found) == 6
    for bounds in found:
        assert list(bounds) == sorted(set(bounds))
