"""A short, seeded part of the fuzzer's cases of modules, and what its pieces are."""

from collections.abc import Iterator
from random import Random

import pytest
from wasmtime import wat2wasm

from tests.fuzz import modules
from tests.support.worker import guests


@pytest.fixture(scope="module")
def child() -> Iterator[modules.Child]:
    child = modules.Child()
    yield child
    child.close()


def test_module_cases_find_nothing(child: modules.Child) -> None:
    became = {"refused": 0, "ran": 0}
    for seed in range(60):
        case = modules.make(Random(f"suite/{seed}"))
        words = child.take(case.wasm)
        assert modules.wrong(words) == [], str(case)
        became[words] += 1
    assert min(became.values()) > 3, "damage that is always, or never, harmless finds nothing"


def test_module_child_that_dies_is_found_and_replaced() -> None:
    child = modules.Child()
    assert child.take(bytes(wat2wasm(guests.HELLO))) == "ran"
    assert child._process is not None
    child._process.kill()
    child._process.wait()
    (wrong,) = modules.wrong(child.take(b""))
    assert wrong == "the process ended with -9"
    assert child.take(b"") == "refused"
    child.close()


def test_module_sections_split_and_join_to_the_same() -> None:
    wasm = bytes(wat2wasm(guests.DECODE))
    parts = modules.sections(wasm)
    assert modules.joined(parts) == wasm
    assert [number for number, _ in parts][:2] == [1, 2]


def test_leb128_has_the_size_asked_for() -> None:
    assert modules.leb128(300) == b"\xac\x02"
    assert modules.leb128(1, 5) == b"\x81\x80\x80\x80\x00"
