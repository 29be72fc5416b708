"""How text is generated: how each token is chosen, and where the text ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from symphony.sdk.constraint import Constraint
from symphony.sdk.packing import TokenSet

_GOLDEN = 0x9E37_79B9_7F4A_7C15  # keeps neighbours' seeds far apart
_SEEDS = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How text is generated, by the names of the OpenAI API and vLLM.

    Without any parameter it is the best token each time, until the model ends the text or its
    context is full.
    """

    max_tokens: int | None = None
    temperature: float = 0.0  # 0 takes the best token, 1 draws from the model's own distribution
    top_k: int = 0  # draws from the best so many tokens alone; 0: from all
    top_p: float = 1.0  # draws from the best tokens alone that together have this probability
    min_p: float = 0.0  # or from those with at least this share of the best one's probability
    seed: int | None = None  # the same tokens again; without it the server draws a seed
    stop: tuple[str, ...] | list[str] | str = ()  # stops before these texts
    stop_token_ids: tuple[int, ...] | list[int] = ()  # stops at these tokens
    exact: bool = False  # exactly `max_tokens` tokens, regardless of the ends above
    logprobs: int = 0  # tells the best so many tokens with each one, at most 20
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bias_mask: tuple[TokenSet, float] | None = None  # adds a number to the logits of these tokens
    repetition_penalty: tuple[TokenSet, float] | None = None
    allowed_tokens: TokenSet | None = None  # leaves only these tokens possible
    constraint: Constraint | None = None
    constraint_since: int | None = None  # the entry of the file where its text begins
    share: bool = False  # computes once what several prompts of the tenant begin with
    adapter: str | None = None  # the name of a LoRA adapter of the tenant
    lookahead: int | None = None  # tokens that the server may be ahead; 8 without it
    chunk: int | None = None  # tokens that come together

    def branch(self, number: int) -> "Sampling":
        """Return the same for one of several branches: each number gives another seed."""
        if self.seed is None:
            return self
        return replace(self, seed=(self.seed + (number + 1) * _GOLDEN) % _SEEDS)

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts that end it."""
        if self.exact:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def stop_tokens(self, eos: tuple[int, ...]) -> list[int]:
        """Return the tokens that end it, the model's own ends first."""
        return [] if self.exact else [*eos, *self.stop_token_ids]

    def chunked(self, count: int) -> "Sampling":
        """Return the same, with this chunk if nothing else is said."""
        chunk = self.chunk or count
        lookahead = chunk if self.lookahead is None else self.lookahead
        return replace(self, chunk=chunk, lookahead=lookahead)

    def get(self) -> dict[str, Any]:
        """Return the option `get` of a pass, nothing if it takes the best token."""
        if self.temperature <= 0:
            return {}
        drawn: dict[str, Any] = {
            "temperature": float(self.temperature),
            "top_k": self.top_k,
            "top_p": float(self.top_p),
            "min_p": float(self.min_p),
        }
        if self.seed is not None:
            drawn["seed"] = self.seed
        return {"get": {"sample": drawn}}

    def options(self, stop: list[int]) -> dict[str, Any]:
        """Return the options of a generation."""
        given: dict[str, Any] = self.get()
        if self.max_tokens is not None:
            given["max"] = self.max_tokens
        if stop:
            given["stop"] = stop
        if self.lookahead is not None:
            given["ahead"] = self.lookahead
        if self.chunk is not None:
            given["lot"] = self.chunk
        given |= token_options(
            self.logit_bias, self.bias_mask, self.repetition_penalty, self.allowed_tokens
        )
        given |= constraint_options(self.constraint, self.constraint_since)
        if self.logprobs:
            given["logprobs"] = self.logprobs
        if self.share:
            given["share"] = True
        if self.adapter:
            given["adapter"] = self.adapter
        return given


def token_options(
    bias: Mapping[int, float],
    bias_mask: tuple[TokenSet, float] | None,
    repetition: tuple[TokenSet, float] | None,
    allowed: TokenSet | None,
) -> dict[str, Any]:
    """Return what makes tokens likelier, less likely or impossible, as far as it is given."""
    given: dict[str, Any] = {}
    if bias:
        given["bias"] = {token: float(value) for token, value in bias.items()}
    if bias_mask is not None:
        given["bias_mask"] = {"mask": bias_mask[0].mask, "value": float(bias_mask[1])}
    if repetition is not None:
        given["repetition"] = {"mask": repetition[0].mask, "penalty": float(repetition[1])}
    if allowed is not None:
        given["allow"] = allowed.mask
    return given


def constraint_options(constraint: Constraint | None, since: int | None) -> dict[str, Any]:
    if constraint is None:
        return {}
    begins = {} if since is None else {"since": since}
    return {"constraint": constraint.handle, **begins}
