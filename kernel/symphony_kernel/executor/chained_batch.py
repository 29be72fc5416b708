"""Batches that follow another one: given before it has ended, begun when it has.

    loop:    step N given ── follower given ───────────── (something new: revoke?) ──────────
    device:  step N computes ─────────────────── ended, begin: N's tokens ── follower computes

A follower's rows lack their tokens, which the step before it samples. The device fills them in and
begins the follower without help from the loop. Until then the loop may revoke the follower. Begin
and revoke exclude each other: the first of the two wins.
"""

from collections.abc import Container, Sequence
from threading import Lock
from typing import Final

import numpy as np
import numpy.typing as npt

from symphony_kernel.protocol.errno import SyscallError

# The placeholder for the token of a follower's row.
BLANK: Final[npt.NDArray[np.uint32]] = np.zeros(1, np.uint32)
BLANK.flags.writeable = False
_TOKEN_BYTES: Final = 4  # first in a result


class Chain:
    """Ties a batch to the batch before it: row i continues that batch's row `rows[i]`.

    `stops[i]` are tokens after which row i does not continue. If no row continues, the batch never
    begins. `may_batch_delivery`: the end of the step may be delivered late, together with others.
    """

    __slots__ = ("_claim", "may_batch_delivery", "rows", "stops", "tokens")

    def __init__(
        self, rows: list[int], stops: Sequence[Container[int]], may_batch_delivery: bool = True
    ) -> None:
        self.rows = rows
        self.stops = stops
        self.may_batch_delivery = may_batch_delivery
        self.tokens: list[int] | None = None  # one a row, once the batch has begun
        self._claim = Lock()  # taken by the begin or by the revoke, and never released

    def begin(self, results: Sequence[bytes | SyscallError]) -> bool:
        """Begin with the results of the batch before; return whether to compute this one.

        Called by the device when that batch has ended. A batch that failed or was not computed has
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
        if not self._claim.acquire(blocking=False):
            return False
        self.tokens = tokens
        return True

    @property
    def waits(self) -> bool:
        """Whether the batch has neither begun nor been revoked."""
        return not self._claim.locked()

    def revoke(self) -> bool:
        """Revoke the batch; return whether it had not begun, so that it never will."""
        return self._claim.acquire(blocking=False)
