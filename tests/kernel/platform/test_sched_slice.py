"""Time slices that threads ask the system for."""

import os
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from symphony_kernel.platform import sched_slice
from symphony_kernel.platform.sched_slice import Attributes, set_slice, slice_seconds

SHORT = 0.0003
_T = TypeVar("_T")


def in_a_thread(work: Callable[[], _T]) -> _T:
    """Return the result of `work` in a thread of its own, which has its own time slices."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


def test_slice_of_a_thread_applies_to_threads_that_it_starts() -> None:
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
    assert slice_seconds() == before, "another thread keeps its own"


def test_slice_leaves_priority_and_policy_unchanged() -> None:
    def work() -> list[int]:
        before = [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)]
        set_slice(SHORT)
        after = [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)]
        return [*before, *after]

    found = in_a_thread(work)
    assert found[:2] == found[2:]


class System:
    """A system in which a thread has this policy, and which refuses one call."""

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
    """Run on a machine whose system calls are known."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("policy", "taken"), [(0, True), (1, False), (3, True), (5, False)])
def test_slice_of_a_realtime_policy_is_not_changed(policy: int, taken: bool) -> None:
    system = System(policy)
    assert set_slice(SHORT, 12, system) is taken
    assert system.set == ([(12, policy, 1, 7, 300_000)] if taken else [])


@pytest.mark.usefixtures("machine")
def test_slice_on_a_system_without_slices_is_not_taken() -> None:
    system = System(0, runtime=0)
    assert not set_slice(SHORT, 12, system)
    assert system.set, "the call was made and not refused"


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("refuses", sched_slice._NUMBERS["x86_64"])
def test_slice_that_the_system_refuses_is_not_taken(refuses: int) -> None:
    system = System(0, refuses)
    assert not set_slice(SHORT, 0, system)
    assert not system.set


def test_slice_on_an_unknown_machine_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    system = System(0)
    assert not set_slice(SHORT, 0, system)
    assert not system.set
    assert slice_seconds() is None
