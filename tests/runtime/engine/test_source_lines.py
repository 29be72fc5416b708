"""Lines of a program's sources, as a build packs them and a worker finds them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_runtime.engine.source_lines import BYTES_MAX, find_line, pack_lines

LIBRARY = ""
LINES = pack_lines([
    (50, LIBRARY, 8), (40, "é.ts", 9), (10, "a.ts", 3), (12, "a.ts", 3), (15, LIBRARY, 7),
    (20, "a.ts", 70_000), (30, "a.ts", 4),
])  # fmt: skip


@pytest.mark.parametrize(
    ("start", "offset", "place"),
    [
        (10, 10, "at a.ts:3"),
        (0, 29, "near a.ts:3"),
        (10, 35, "at a.ts:4"),
        (0, 1_000, "near é.ts:9"),
        (41, 60, ""),
        (0, 9, ""),
        (31, 35, ""),
    ],
)
def test_line_of_an_offset_is_the_last_place_of_its_function(
    start: int, offset: int, place: str
) -> None:
    assert find_line(LINES, start, offset) == place


def test_line_in_bytes_that_are_no_lines_is_none() -> None:
    assert find_line(pack_lines([]), 0, 5) == ""
    assert find_line(b"", 0, 5) == ""
    assert find_line(LINES + bytes(BYTES_MAX), 0, 50) == ""
    assert find_line(b"\xff" * 40, 0, 50) == ""


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_line_in_any_bytes_raises_nothing(lines: bytes, start: int, offset: int) -> None:
    find_line(lines, start, offset)
    find_line(b"\x03\0\0\0" + lines, start, offset)
