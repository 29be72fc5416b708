"""Batches that follow another one: given before it has ended, begun when it has.

    loop:    step N given ── follower given ───────────── (something new: revoke?) ──────────
    device:  step N computes ─────────────────── ended, begin: N's tokens ── follower computes

A follower's rows lack their tokens, which the step before it samples. The device fills them in and
begins the follower without help from the loop. Until then the loop may revoke the follower. Begin
and revoke exclude each other: the first of the two wins.

A GPU launches a follower while step N computes, with tokens that stay on the device. What is
launched is computed in any case. So a launch takes the follower as a begin does: new requests join
the step behind it. Otherwise each request that comes or ends would cost a whole step.
"""

from collections.abc import Container, Sequence
from threading import Lock
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from symphony_kernel.protocol.errno import SyscallError

# The placeholder for the token of a follower's row.
BLANK: Final[npt.NDArray[np.uint32]] = np.zeros(1, np.uint32)
BLANK.flags.writeable = False
_TOKEN_BYTES: Final = 4  # first in a result


class BatchInFront(Protocol):
    """The part of `base.Batch` that a committed batch needs of the one in front."""

    prepared: Any
    results: list[bytes | SyscallError]


class Chain:
    """Ties a batch to the batch before it: row i continues that batch's row `rows[i]`.

    `stops[i]` are tokens after which row i does not continue. If no row continues, the batch never
    begins. `may_batch_delivery`: the end of the step may be delivered late, together with others.

    With `before`, the batch in front, it is `committed`: behind these rows it has others, which
    have their tokens. It always begins and cannot be revoked. A row without a token gets token 0,
    and its result is not used. Between both may be batches that were revoked or have no rows.
    """

    __slots__ = ("_claim", "_declined", "before", "committed", "launched", "may_batch_delivery",
                 "rows", "stops", "tokens")  # fmt: skip

    def __init__(
        self,
        rows: list[int],
        stops: Sequence[Container[int]],
        may_batch_delivery: bool = True,
        before: BatchInFront | None = None,
    ) -> None:
        self.rows = rows
        self.stops = stops
        self.may_batch_delivery = may_batch_delivery
        self.committed = before is not None
        self.before = before  # until it begins
        self.tokens: list[int] | None = None  # one for each of `rows`, once the batch has begun
        # Taken by the launch, the begin or the revoke, and never released.
        self._claim = Lock()
        self.launched = self.committed and self._claim.acquire(blocking=False)
        self._declined = False  # launched, but it does not begin

    def launch(self) -> bool:
        """Take the batch for a launch before it begins; return False if it was revoked.

        Called by the device. From now on the batch cannot be revoked.
        """
        if not self.launched:
            self.launched = self._claim.acquire(blocking=False)
        return self.launched

    def begin(self, results: Sequence[bytes | SyscallError]) -> bool:
        """Begin with the results of the batch before; return whether to compute this one.

        Called by the device when that batch has ended. A batch that failed or was not computed has
        no results. A committed batch knows whose results it needs.
        """
        if self.before is not None:
            results, self.before = self.before.results, None
        tokens = []
        for row in self.rows:
            result = results[row] if row < len(results) else b""
            if type(result) is not bytes or len(result) < _TOKEN_BYTES:
                if not self.committed:
                    return self._decline()
                result = bytes(_TOKEN_BYTES)
            tokens.append(int.from_bytes(result[:_TOKEN_BYTES], "little"))
        if not self.committed and all(
            token in stop for token, stop in zip(tokens, self.stops, strict=True)
        ):
            return self._decline()
        if not (self.launched or self._claim.acquire(blocking=False)):
            return False
        self.tokens = tokens
        return True

    @property
    def revoked(self) -> bool:
        return self._claim.locked() and self.tokens is None and not self.launched

    def _decline(self) -> bool:
        self._declined = self.launched
        return False

    def revoke(self) -> bool:
        """Revoke the batch; return whether it had not begun, so that it never will.

        That is so for a launched batch as well that did not begin when its turn came.
        """
        return self._claim.acquire(blocking=False) or self._declined
