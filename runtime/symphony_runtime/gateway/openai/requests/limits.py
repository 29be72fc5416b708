"""What one request of the OpenAI routes may ask for: what its tenant's limits leave room for.

A request is a run of the shipped program, one instance. Each answer is a branch of it:

    a KV file and a ticket for each answer, and one more for a prompt with several answers
    the tokens of all prompts and answers, as computed tokens and as KV entries
    the results that a branch's ticket promises, which grow with `logprobs`

So the limits of a run say how many answers, tokens and log-probabilities there may be. What the
gateway cannot count, a prompt's tokens, the program does: it is told `tokens` and `kv_tokens`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from symphony_kernel.protocol.limits import (
    INSTANCE_HANDLES_MAX,
    RUN_RESULT_BYTES_MAX,
    RUN_TICKETS_MAX,
)

from symphony_runtime.config.limits import TenantLimits
from symphony_runtime.gateway.openai.errors import refused

# What each limit is in one instance; a run may have several.
_OF_INSTANCE: Final = {
    "handles": INSTANCE_HANDLES_MAX,
    "tickets": RUN_TICKETS_MAX,
    "result_bytes": RUN_RESULT_BYTES_MAX,
}
_BRANCHES: Final = ("handles", "tickets", "kv_files")  # of each, one for a branch
_AHEAD: Final = 65  # results of a branch that its ticket may hold: `program/src/branch.rs`
_RESULT_BYTES: Final = 8  # of a token, and of each likely one beside it


@dataclass(frozen=True, slots=True)
class Room:
    """A run's limits and its tenant's, by name."""

    limits: Mapping[str, int]

    @classmethod
    def of(cls, limits: TenantLimits) -> "Room":
        """Return the room of a tenant's requests."""
        of_tenant = {"kv_files": limits.at_most("kv_files")}
        return cls({**limits.choose({}), **of_tenant})

    def most(self, limit: str) -> int:
        """Return what one instance may have of a limit."""
        return min(self.limits[limit], _OF_INSTANCE.get(limit, self.limits[limit]))

    def answers_max(self) -> tuple[int, str]:
        """Return how many answers there may be at most, and the limit that says so."""
        return min((self.most(limit), limit) for limit in _BRANCHES)

    def check_answers(self, prompts: int, answers: int, logprobs: int | None) -> None:
        """Check that there is room for so many answers to each of so many prompts.

        Raises:
            OpenAIError: 400.
        """
        branches = prompts * (answers + (answers > 1))
        most, limit = self.answers_max()
        asked = f"{_count(prompts, 'prompt')} with {_count(answers, 'answer')}"
        if branches > most:
            words = f"{asked} each: they take {branches} branches"
            raise refused(f"{words}, at most {most} ({named(limit)})", _at_fault(answers))
        if logprobs:
            size = prompts * answers * _AHEAD * _RESULT_BYTES * (1 + logprobs)
            if size > (most := self.most("result_bytes")):
                words = f"{asked} each and {logprobs} log-probabilities a token: they take {size}"
                limit = named("result_bytes")
                raise refused(f"{words} bytes of results, at most {most} ({limit})", "logprobs")


def named(limit: str) -> str:
    """Return where a bound comes from, in words."""
    return f"the tenant's limit `{limit}`"


def _at_fault(answers: int) -> str:
    return "n" if answers > 1 else "prompt"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
