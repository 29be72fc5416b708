import msgpack
import pytest
from symphony.sdk import packing
from symphony.sdk.packing import Choice, TokenSet


def test_numbers_are_little_endian_and_come_back() -> None:
    assert packing.words([1, 0xFFFF_FFFF]) == b"\x01\0\0\0\xff\xff\xff\xff"
    assert packing.numbers(packing.words(range(5))) == [0, 1, 2, 3, 4]
    with pytest.raises(OverflowError):
        packing.words([-1])


def test_floats_of_options_have_32_bits() -> None:
    packed = packing.options({"get": {"sample": {"temperature": 0.8}}})
    assert msgpack.unpackb(packed)["get"]["sample"]["temperature"] == 0.800000011920929
    assert packing.options({}) == b""


def test_results_are_split_by_places() -> None:
    record = b"\x05\0\0\0\0\0\x80\xbf"
    assert packing.choice(record) == Choice(5, -1.0)
    assert packing.split(record * 4, 2, packing.choices) == [[(5, -1.0)] * 2] * 2
    assert packing.split(b"", 0, packing.floats) == []
    assert packing.scored(record * 3).best == [(5, -1.0)] * 2


def test_sets_of_tokens_are_masks() -> None:
    tokens = TokenSet([0, 9, 15], 16)
    assert tokens.mask == b"\x01\x82"
    assert [token for token in range(20) if token in tokens] == [0, 9, 15]
    with pytest.raises(IndexError):
        TokenSet([16], 16)
