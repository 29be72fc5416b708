"""Turns on a processor, as threads ask the system for them."""

import os
import platform
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from symphony_kernel.platform import sched_slice
from symphony_kernel.platform.sched_slice import Attributes, set_slice, slice_seconds

SHORT = 0.0003
_T = TypeVar("_T")


def in_a_thread(work: Callable[[], _T]) -> _T:
    """Return what `work` does in a thread of its own, whose turns are nobody else's."""
    found: list[_T] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_has_the_turns_it_asks_for_and_so_have_those_that_it_starts() -> None:
    def work() -> tuple[bool, list[float | None]]:
        usual, taken = slice_seconds(), set_slice(SHORT)
        asked = [slice_seconds(), in_a_thread(slice_seconds)]
        set_slice(0.0)
        return taken, [usual, *asked, slice_seconds()]

    before = slice_seconds()
    taken, (usual, mine, theirs, after) = in_a_thread(work)
    assert mine == theirs
    assert taken or usual is None
    assert mine == (SHORT if taken else usual)
    assert after == usual
    assert slice_seconds() == before, "of no other thread"


def test_it_has_no_more_of_a_processor_for_it() -> None:
    def work() -> list[int]:
        before = [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)]
        set_slice(SHORT)
        after = [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)]
        return [*before, *after]

    found = in_a_thread(work)
    assert found[:2] == found[2:]


class System:
    """Answers for the system: a thread has this policy and niceness; some calls it refuses."""

    def __init__(self, policy: int, refuses: int | None = None, runtime: int = 3_000_000) -> None:
        self.policy, self.refuses, self.runtime = policy, refuses, runtime
        self.set: list[tuple[int, int, int, int, int]] = []

    def __call__(self, number: int, thread: int, reference: Any, *_: int) -> int:
        attributes: Attributes = reference._obj
        if number == self.refuses:
            return -1
        if number == sched_slice._NUMBERS["x86_64"][1]:
            attributes.policy, attributes.flags, attributes.nice = self.policy, 3, 7
            attributes.runtime = self.runtime
        else:
            a = attributes
            self.set.append((thread, a.policy, a.flags, a.nice, a.runtime))
        return 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose calls have numbers that are known."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("policy", "taken"), [(0, True), (1, False), (3, True), (5, False)])
def test_policies_that_have_no_such_turns_are_left_alone(policy: int, taken: bool) -> None:
    system = System(policy)
    assert set_slice(SHORT, 12, system) is taken
    assert system.set == ([(12, policy, 1, 7, 300_000)] if taken else [])


@pytest.mark.usefixtures("machine")
def test_a_system_that_knows_of_no_lengths_has_not_taken_one() -> None:
    system = System(0, runtime=0)
    assert not set_slice(SHORT, 12, system)
    assert system.set, "it was asked, and refused nothing"


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("refuses", sched_slice._NUMBERS["x86_64"])
def test_a_system_that_refuses_is_no_fault(refuses: int) -> None:
    system = System(0, refuses)
    assert not set_slice(SHORT, 0, system)
    assert not system.set


def test_elsewhere_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    system = System(0)
    assert not set_slice(SHORT, 0, system)
    assert not system.set
    assert slice_seconds() is None
