"""How long steps take here, learned as they end, and how much prefill a bound on them leaves room
for.

    seconds = base(decode rows) + prompt tokens * seconds a token

The base is learned from steps that only decode, for each power of two of rows; what a step with
prompts takes above it is theirs. No machine's figures are assumed: until something is known, a
prompt gets one quantum beside decodes, and never more than twice what has been tried already.
"""

from typing import Final

from symphony_kernel.protocol.limits import PREFILL_QUANTUM_TOKENS, PREFILL_TOKENS_MIN
from symphony_kernel.scheduler.estimate import Estimate

_MARGIN: Final = 0.9  # of the bound: what the model does not know of
_TOKEN_SECONDS_MIN: Final = 1e-9  # what a token takes may be next to nothing
_SIZES: Final = 24  # powers of two of rows


class StepCosts:
    """Learned from steps; seconds."""

    def __init__(self) -> None:
        self._bases = [Estimate() for _ in range(_SIZES)]
        self._token = Estimate()
        self._tried = PREFILL_QUANTUM_TOKENS  # the most prompt tokens of a step so far

    def learn(self, decodes: int, prefill: int, seconds: float) -> None:
        """A step with so many decode rows and so many prompt tokens has taken so long."""
        if not prefill:
            self._bases[decodes.bit_length()].learn(seconds)
        elif prefill >= PREFILL_TOKENS_MIN:
            self._token.learn(max(seconds - self._base(decodes), 0.0) / prefill)
            self._tried = max(self._tried, prefill)

    @property
    def token_seconds(self) -> float:
        """What a prompt's token takes; 0.0: not known yet."""
        return self._token.mean

    def prefill_tokens(self, decodes: int, seconds: float) -> int:
        """Return how many prompt tokens may go beside so many decode rows within `seconds`.

        A prompt goes on even where the bound is too small for any: by PREFILL_TOKENS_MIN a step.
        """
        token = self._token
        if not token.known:
            return PREFILL_QUANTUM_TOKENS
        left = seconds * _MARGIN - self._base(decodes)
        if left <= 0.0:  # what a token takes may be next to nothing, too
            return PREFILL_TOKENS_MIN
        each = token.mean + token.deviation
        most = 2 * self._tried
        fits = most if left > each * most else int(left / each)
        return max(fits, PREFILL_TOKENS_MIN)

    def decodes_seconds(self, decodes: int) -> float:
        """Return what a step of so many decode rows takes alone; 0.0: not known yet."""
        return self._base(decodes)

    def tokens_in(self, seconds: float) -> float:
        """Return how many prompt tokens take so long, as far as that is known."""
        token = self._token
        return seconds / max(token.mean + token.deviation, _TOKEN_SECONDS_MIN)

    def _base(self, decodes: int) -> float:
        """Return what a step takes without prompts: of the nearest number of rows that is known."""
        size = max(decodes, 1).bit_length()
        bases = self._bases
        if bases[size].known:
            return bases[size].mean
        for more in range(size + 1, _SIZES):
            if bases[more].known:
                return bases[more].mean
        for fewer in range(size - 1, 0, -1):
            if bases[fewer].known:
                return bases[fewer].mean
        return 0.0
