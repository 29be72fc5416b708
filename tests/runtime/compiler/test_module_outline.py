"""A module's outline: what it says it has, read without believing that it is there."""

import pytest
from symphony_kernel.protocol.limits import PROGRAM_EXPORTS_MAX
from symphony_runtime.compiler.module_outline import (
    EXPORT,
    FUNCTION,
    GLOBAL,
    HEADER,
    IMPORT,
    TYPE,
    read_outline,
)

from tests.support.worker.binary import AT_ZERO, I32, VOID, Binary, leb, name, section, vector


def test_outline_counts_the_items_of_each_section() -> None:
    made = Binary(
        types=[VOID] * 300,
        imports=[name("lip") + name("send") + b"\0\x02"] * 2,
        functions=200,
        globals=[I32 + b"\0" + AT_ZERO] * 3,
    )
    outline = read_outline(made.wasm())
    counts = {TYPE: 300, IMPORT: 2, FUNCTION: 200, GLOBAL: 3, EXPORT: 2}
    assert {section: outline.counts[section] for section in counts} == counts
    assert outline.sizes[IMPORT] == 1 + 2 * 11
    assert outline.problems() == []


def test_outline_adds_up_sections_of_one_kind() -> None:
    one = section(EXPORT, leb(PROGRAM_EXPORTS_MAX))
    assert read_outline(HEADER + one).problems() == []
    assert len(read_outline(HEADER + one + one).problems()) == 1


@pytest.mark.parametrize(
    "tail", [b"\x01", b"\x01\x05abc", b"\x01\x80\x80\x80\x80\x80\x01", section(1, b""),
             b"\x0b\xff\xff\xff\xff\x0f"]
)  # fmt: skip
def test_outline_of_a_section_with_a_wrong_length_is_an_error(tail: bytes) -> None:
    with pytest.raises(ValueError, match=r"longer than the file|has no end"):
        read_outline(HEADER + tail)


def test_outline_of_a_section_without_a_count_has_its_size_only() -> None:
    outline = read_outline(HEADER + section(0, name("name") + b"\xff" * 10) + section(8, b"\x07"))
    assert not outline.counts
    assert dict(outline.sizes) == {0: 15, 8: 1}
    assert read_outline(HEADER + section(3, vector([b"\0"]))).counts[FUNCTION] == 1
