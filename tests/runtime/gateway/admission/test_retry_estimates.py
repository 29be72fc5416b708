from symphony_kernel.protocol.limits import RETRY_SECONDS_MAX
from symphony_runtime.gateway.admission.retry_estimates import EventInterval, Outage, retry_after


class Time:
    """A clock that is set."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_interval_is_the_mean_of_recent_events() -> None:
    time = Time()
    pace = EventInterval(time)
    assert pace.seconds() == 1.0
    for _ in range(10):
        pace.record()
        time.now += 3.0
    assert pace.seconds() == 3.0


def test_interval_after_a_pause_is_the_pause() -> None:
    time = Time()
    pace = EventInterval(time)
    for _ in range(10):
        pace.record()
        time.now += 1.0
    time.now += 200.0
    assert pace.seconds() == 201.0
    pace.record()
    time.now += 0.5
    assert pace.seconds() < 202.0
    time.now += 61.0
    assert 61.0 < pace.seconds() < 62.0, "events before the pause are forgotten"


def test_outage_estimate_is_its_age() -> None:
    time = Time()
    absence = Outage(time)
    assert absence.seconds() == 0.0
    time.now += 7.0
    assert absence.seconds() == 7.0
    absence.end()
    assert absence.seconds() == 0.0


def test_retry_after_is_whole_and_bounded() -> None:
    assert [retry_after(s) for s in (0.0, 0.2, 1.0, 1.2, 59.0)] == [1, 1, 1, 2, 59]
    for much in (1e9, float("inf"), float("nan")):
        assert retry_after(much) == RETRY_SECONDS_MAX
