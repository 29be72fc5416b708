"""The epoch's ticker: it preempts a guest that runs for a tick, and sleeps while none does."""

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from symphony_kernel.protocol.limits import EPOCH_TICK_MS
from symphony_runtime.engine.epoch_ticker import Alarm, EventAlarm, Ticker, TimerAlarm

from tests.support.requirements import requires

TICK_S = EPOCH_TICK_MS / 1000
ALARMS: list[Callable[[], Alarm]] = [EventAlarm]
if sys.platform == "linux":
    ALARMS.append(TimerAlarm)


class Ticking:
    """A ticker, and the ticks that it has made."""

    def __init__(self, alarm: Alarm) -> None:
        self.ticks = 0
        self.ticked = threading.Event()
        self.ticker = Ticker(self._tick, alarm)

    def _tick(self) -> None:
        self.ticks += 1
        self.ticked.set()

    def begin(self) -> None:
        self.ticker.board.since = time.perf_counter()
        if not self.ticker.board.armed:
            self.ticker.arm()

    def end(self) -> None:
        self.ticker.board.since = 0.0


@pytest.fixture(params=ALARMS, ids=lambda alarm: alarm.__name__)
def ticking(request: pytest.FixtureRequest) -> Iterator[Ticking]:
    made = Ticking(request.param())
    yield made
    made.end()
    made.ticker.close()


def test_ticker_preempts_what_runs_for_a_tick_again_and_again(ticking: Ticking) -> None:
    ticking.begin()
    for _ in range(5):
        assert ticking.ticked.wait(20)
        ticking.ticked.clear()
        ticking.begin()
    assert ticking.ticks >= 5
    assert ticking.ticker.board.epoch >= 4


def test_ticker_preempts_a_long_run_after_many_short_ones(ticking: Ticking) -> None:
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        ticking.begin()
        ticking.end()
    ticking.ticked.clear()
    ticking.begin()
    assert ticking.ticked.wait(20)


def test_ticker_that_falls_asleep_misses_no_run_that_begins(ticking: Ticking) -> None:
    for pause in range(12):
        ticking.begin()
        ticking.end()
        time.sleep(pause * TICK_S)
        ticking.begin()
        assert ticking.ticked.wait(20), f"after {pause} ticks"
        ticking.end()
        ticking.ticked.clear()


@requires("linux", sys.platform == "linux", "a timerfd is Linux's")
def test_ticker_sleeps_through_runs_shorter_than_a_tick() -> None:
    ticking, quiet = Ticking(TimerAlarm()), 0
    for _ in range(20):
        looks = ticking.ticker.looks
        ticking.begin()
        ticking.end()
        ticking.ticker.disarm(time.perf_counter())
        time.sleep(4 * TICK_S)
        quiet += ticking.ticker.looks == looks
    ticking.ticker.close()
    assert quiet >= 5  # the machine may have been away between a begin and its rest
