"""Time, to the millisecond."""

import _lip


def time():
    """Return the seconds since 1970."""
    return _lip.unix_ms() / 1000


def monotonic():
    """Return the seconds since the program started."""
    return _lip.clock_ms() / 1000


perf_counter = monotonic


def time_ns():
    return _lip.unix_ms() * 1_000_000


def sleep(seconds):
    """Let nothing of this program go on for so long: `await asyncio.sleep()` lets other tasks."""
    _lip.wait([_lip.sleep(int(seconds * 1000 + 0.5))], -1)
