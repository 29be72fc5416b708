"""Batches that follow another one: given before it has ended, begun when it has.

    loop:    step N given ── follower given ───────────── (something new: revoke?) ──────────
    device:  step N computes ─────────────────── ended, begin: N's tokens ── follower computes

A follower's rows lack their tokens, which the step before it samples. The device puts them in and
goes from step to step without a word from the loop. Until it has begun, a follower may be taken
back, and one of the two is first: there is one chance to take it.
"""

from collections.abc import Container, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from symphony_kernel.protocol.errno import SyscallError

# Stands for the token of a follower's row.
BLANK: Final[npt.NDArray[np.uint32]] = np.zeros(1, np.uint32)
BLANK.flags.writeable = False
_TOKEN_BYTES: Final = 4  # first in a result


class Chain:
    """Ties a batch to the one given before it: row i goes on behind row `rows[i]` of that.

    `stops[i]` are tokens behind which row i does not go on; when no row does, it never begins.
    `lot`: its end may be told of somewhat late, together with those of others.
    """

    __slots__ = ("_chance", "lot", "rows", "stops", "tokens")

    def __init__(self, rows: list[int], stops: Sequence[Container[int]], lot: bool = True) -> None:
        self.rows = rows
        self.stops = stops
        self.lot = lot
        self.tokens: list[int] | None = None  # of the rows, once it has begun
        self._chance = [None]

    def begin(self, results: Sequence[bytes | SyscallError]) -> bool:
        """Begin, with the results of the batch before; return whether it is to be computed.

        On the device's side, when that batch has ended. One that failed, or was not computed, has
        no results.
        """
        tokens = []
        for row in self.rows:
            result = results[row] if row < len(results) else b""
            if type(result) is not bytes or len(result) < _TOKEN_BYTES:
                return False
            tokens.append(int.from_bytes(result[:_TOKEN_BYTES], "little"))
        if all(token in stop for token, stop in zip(tokens, self.stops, strict=True)):
            return False
        if not self._take():
            return False
        self.tokens = tokens
        return True

    @property
    def waits(self) -> bool:
        """Whether it has neither begun nor been taken back."""
        return bool(self._chance)

    def revoke(self) -> bool:
        """Take it back; return whether it had not begun, and never will."""
        return self._take()

    def _take(self) -> bool:
        # Two threads may come at once: a list's pop is whole.
        try:
            self._chance.pop()
        except IndexError:
            return False
        return True
