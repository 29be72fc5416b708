"""Images: the same graph in another process, or no image at all."""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from symphony_kernel.journal.snapshot import SnapshotClass, SnapshotError, Snapshotter
from symphony_kernel.protocol.errno import Errno, KernelBug


class Slotted:
    __slots__ = ("later", "name", "next")

    def __init__(self, name: str) -> None:
        self.name = name
        self.next: Slotted | None = None
        self.later: int

    def greet(self, other: str) -> str:
        return f"{self.name} greets {other}"


@dataclass(slots=True, eq=False)
class Root:
    values: Any = None
    counter: int = 0
    listener: Any = None
    scratch: list[int] = field(default_factory=list)


class Loose:
    def __init__(self) -> None:
        self.a, self.cache = 1, {"x": 1}


CLASSES = (
    SnapshotClass(Slotted),
    SnapshotClass(Root, {"listener": lambda: None}),
    SnapshotClass(Loose, {"cache": dict}),
    SnapshotClass(Errno),
)
NOTHING = object()


def copy(values: Any) -> Any:
    image = Snapshotter(CLASSES, {"root": Root(values)}, {"nothing": NOTHING}).write()
    other = Root(listener="mine")
    Snapshotter(CLASSES, {"root": other}, {"nothing": NOTHING}).read(image)
    assert other.listener == "mine"
    return other.values


@pytest.mark.parametrize(
    "value",
    [
        None, True, -1, 1 << 63, 0.1, "text", b"bytes", (), (1, (2,)), [1, [2]], {"a": {1: 2}},
        {1, 2}, frozenset({3}), deque([1, 2]), bytearray(b"x"), Counter({"a": 2}), Errno.EIO,
        OrderedDict([("b", 1), ("a", 2)]), {(1, 2): [3]}, Path("some/where"),
    ],
)  # fmt: skip
def test_snapshot_keeps_values_and_their_types(value: Any) -> None:
    made = copy(value)
    assert made == value
    assert type(made) is type(value)
    assert list(made) == list(value) if isinstance(value, dict) else True


@pytest.mark.parametrize(
    "array",
    [
        np.arange(7, dtype=np.int32),
        np.zeros((3, 0), np.float32),
        np.arange(12.0).reshape(3, 4).T,
        np.zeros(100_000, np.uint32),
        np.concatenate((np.arange(50_000), np.full(50_000, -1))).astype(np.int32),
        np.arange(100_000).reshape(100, 1000),
        np.eye(5, dtype=np.bool_),
    ],
)
def test_snapshot_keeps_arrays_writable(array: Any) -> None:
    made = copy([array])[0]
    assert made.dtype == array.dtype
    assert np.array_equal(made, array)
    made[...] = 0


def test_snapshot_of_a_large_even_array_is_small() -> None:
    root = Root(np.zeros(1 << 20, np.int64))
    root.values[5] = 1
    assert len(Snapshotter(CLASSES, {"root": root}, {}).write()) < 1000


def test_snapshot_keeps_identity_and_cycles() -> None:
    one, two = Slotted("one"), Slotted("two")
    one.next, two.next = two, one
    made = copy([one, two, {one: two}, NOTHING])
    assert made[0].next is made[1]
    assert made[1].next is made[0]
    assert made[2][made[0]] is made[1]
    assert made[3] is NOTHING
    assert not hasattr(made[0], "later")


def test_snapshot_of_a_long_chain_is_read() -> None:
    first = last = Slotted("0")
    for n in range(20_000):
        last.next = Slotted(str(n))
        last = last.next
    made, count = copy(first), 0
    while made is not None:
        made, count = made.next, count + 1
    assert count == 20_001


def test_snapshot_keeps_methods_by_name() -> None:
    greet = copy(partial(Slotted("I").greet, "you"))
    assert greet() == "I greets you"


def test_snapshot_makes_declared_fields_anew() -> None:
    loose = Loose()
    loose.a, loose.cache = 5, {"y": 2}
    made = copy(loose)
    assert (made.a, made.cache) == (5, {})


@pytest.mark.parametrize("value", [object(), lambda: None, {1: print}, partial(print, end="")])
def test_snapshot_of_an_undeclared_object_raises(value: Any) -> None:
    with pytest.raises(KernelBug):
        copy(value)


def test_foreign_or_damaged_snapshot_is_refused() -> None:
    image = Snapshotter(CLASSES, {"root": Root([Slotted("x")])}, {}).write()
    for classes, roots in (
        (CLASSES[1:], {"root": Root()}),
        (CLASSES, {"other": Root()}),
        ((SnapshotClass(Slotted, {"name": str}), *CLASSES[1:]), {"root": Root()}),
    ):
        with pytest.raises(SnapshotError):
            Snapshotter(classes, roots, {}).read(image)
    for damaged in (b"", b"\xc0", image[:-5], b"\x93\x07" + image[2:]):
        with pytest.raises(SnapshotError):
            Snapshotter(CLASSES, {"root": Root()}, {}).read(damaged)
