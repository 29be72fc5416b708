"""Run-ahead: how far a generation has come, and whether its next step may be launched.

    a step ends -> RunAhead.give(record) -> the same work is submitted again, in the same completion

So the next batch is formed without the worker, which hears of each token and returns credit for
those that its program has taken. A token is appended by the step after the one that sampled it. The
program has taken T tokens, G have been given: tokens up to G - 1 may be in the file, and the next
step, which appends token G, waits until G - T <= ahead. So at most `ahead` tokens are in the file
that the program has not seen.
"""

import struct

from mypy_extensions import mypyc_attr

from symphony_kernel.protocol.generate_options import GenerateOptions

_token = struct.Struct("<I").unpack_from


@mypyc_attr(allow_interpreted_subclasses=True)
class RunAhead:
    """One generation's counters. `room` is how many tokens the file and the model have room for."""

    __slots__ = ("_ahead", "_left", "stop", "untaken")

    def __init__(self, options: GenerateOptions, room: int) -> None:
        assert room > 0
        self._left = min(options.tokens_max, room)
        self.stop = options.stop
        self._ahead = options.ahead
        self.untaken = 0  # tokens given that the program has not taken, as far as the kernel knows

    def give(self, record: bytes) -> bool:
        """Count the token of a step's record; return whether it is the last one."""
        self.untaken += 1
        self._left -= 1
        return not self._left or (bool(self.stop) and _token(record)[0] in self.stop)

    @property
    def stalled(self) -> bool:
        """Whether the next step waits until the program has taken more."""
        return self.untaken > self._ahead

    def goes_on(self, tokens: int) -> bool:
        """Whether the step behind so many tokens more is sure, but for the stop tokens."""
        return self._left > tokens and self.untaken + tokens <= self._ahead

    def take(self, n: int) -> None:
        """The program has taken n tokens of the untaken ones."""
        assert 0 < n <= self.untaken
        self.untaken -= n
