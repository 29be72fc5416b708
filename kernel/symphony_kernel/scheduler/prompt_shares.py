"""What each tenant's prompts may have of a step, beside other tenants' decodes.

A step may take so many `times` as long as it would with the work of one that decodes alone, which
is its decodes and its own prompts: with D tokens of prompts that take as long as the decodes, p of
its own and P of everybody's,

    D + P <= times (D + p)

for each that decodes, but for whose own prompt it is that asks. Times are those of the weights: two
for two equal tenants. So the tokens that somebody's own prompts get let others' get as many. Beside
the decodes others' get a fifth less, since nobody knows exactly how long a step will take.
"""

from collections.abc import Mapping
from typing import Final

from symphony_kernel.protocol.limits import PREFILL_TOKENS_MIN

_MARGIN: Final = 0.8  # of others' time beside the decodes
_ANY: Final = 1 << 30  # tokens


class PromptShares:
    """Of one step that is being formed. `times` are of the tenants that decode, all above 1."""

    __slots__ = ("_all", "_asked", "_hindered", "_nobodys", "_own")

    def __init__(
        self, decodes_tokens: float, times: Mapping[str, float], rests: bool, probes: bool = False
    ) -> None:
        """`decodes_tokens`: tokens of prompts that take as long as the decodes, of this step and of
        those before it in which prompts rested; now they do (`rests`), but for one's own, or all of
        them, so that it shows what decodes take (`probes`).
        """
        self._nobodys = probes
        # (times, room beside what nobody had yet, tenant), the least first.
        self._hindered = sorted(
            (each, 0.0 if rests else _room(each, decodes_tokens), name)
            for name, each in times.items()
        )
        self._own = dict.fromkeys(times, 0)  # tokens of prompts so far, of those that decode
        self._all = 0
        self._asked: set[str] = set()  # tenants that got less than they wanted

    def left(self, tenant: str) -> int:
        """Return how many tokens more a tenant's prompts may have."""
        if self._nobodys:
            return 0
        least = float(_ANY)
        for times, room, name in self._hindered:
            if name == tenant:
                continue
            own = self._own[name]
            least = min(least, room + times * own - self._all)
            if not own:
                break  # whoever follows has more times, and so more room
        return max(int(least), 0)

    def took(self, tenant: str, tokens: int) -> None:
        """A tenant's prompts have got so many tokens."""
        self._all += tokens
        if tenant in self._own:
            self._own[tenant] += tokens

    def refused(self, tenant: str) -> None:
        """A tenant's prompts have had their share, as far as the step has been formed."""
        self._asked.add(tenant)

    def grown(self) -> bool:
        """Whether one that was refused may have some more now; asked once for each refusal."""
        asked, self._asked = self._asked, set()
        return any(self.left(tenant) >= PREFILL_TOKENS_MIN for tenant in asked)

    def debt(self) -> float:
        """Return for how many tokens' time decodes are to have steps for themselves from now on.

        0 or less where this step has as much of them as it owes.
        """
        return max(
            (self._all - times * self._own[name]) / (_MARGIN * (times - 1.0))
            for times, _, name in self._hindered
        )


def _room(times: float, decodes_tokens: float) -> float:
    return max(_MARGIN * (times - 1.0) * decodes_tokens, PREFILL_TOKENS_MIN)
