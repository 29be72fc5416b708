"""Forward passes."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from symphony.attached.calls import Ticket
from symphony.sdk.constraint import Constraint
from symphony.sdk.handle import Handle
from symphony.sdk.packing import (
    Choice,
    Scored,
    TokenSet,
    choice,
    choices,
    floats,
    options,
    scored,
    split,
    vector,
    words,
)
from symphony.sdk.sampling import Sampling, constraint_options, token_options

T = TypeVar("T")
NONE = options({"get": "none"})


def _nothing(_: Any) -> None:
    return None


class _Pass:
    """A forward pass in the making: what is wanted of it starts it."""

    def __init__(
        self, kv: Handle, tokens: Sequence[int], positions: Sequence[int] | None,
        given: dict[str, Any],
    ) -> None:  # fmt: skip
        self._kv, self._tokens, self._positions, self._given = kv, tokens, positions, given

    def _start(self, get: dict[str, Any], decode: Callable[[bytes], T]) -> Ticket[T]:
        kv, given = self._kv, {**self._given, **get}
        arguments: dict[str, Any] = {"kv": kv.number, "tokens": words(self._tokens)}
        if self._positions is not None:
            arguments["positions"] = words(self._positions)
        if given:
            arguments["opts"] = options(given)
        return kv.run.calls.start("pred", arguments, decode)

    def prefill(self) -> Ticket[None]:
        """Start it for the file's sake: its tokens are appended, and nothing else is asked."""
        return self._start({"get": "none"}, _nothing)


class PredMany(_Pass):
    """A forward pass with a result for each of several places, in order."""

    def _many(self, get: dict[str, Any], read: Callable[[bytes], T]) -> Ticket[list[T]]:
        at = self._given["at"]
        places = len(self._tokens) if at == "all" else len(at)
        return self._start(get, lambda packed: split(packed, places, read))

    def argmax(self) -> Ticket[list[Choice]]:
        """Start it; the best token of each place."""
        return self._many({}, choice)

    def sample(self, sampling: Sampling) -> Ticket[list[Choice]]:
        """Start it; a token drawn for each place."""
        return self._many(sampling.get(), choice)

    def argmax_scored(self, k: int) -> Ticket[list[Scored]]:
        """Start it; the best token of each place, and the best `k`, at most 20."""
        return self._many({"logprobs": k}, scored)

    def sample_scored(self, sampling: Sampling, k: int) -> Ticket[list[Scored]]:
        """Start it; a token drawn for each place, and the best `k`, at most 20."""
        return self._many({**sampling.get(), "logprobs": k}, scored)

    def top(self, k: int) -> Ticket[list[list[Choice]]]:
        """Start it; the best `k` tokens of each place, best first."""
        return self._many({"get": {"top": k}}, choices)

    def of(self, tokens: Sequence[int]) -> Ticket[list[list[float]]]:
        """Start it; for each place the log-probability of each of these tokens."""
        return self._many({"get": {"of": list(tokens)}}, floats)

    def logits(self) -> Ticket[list[Any]]:
        """Start it; for each place the whole vocabulary's logits, f32: NumPy's if it is there."""
        return self._many({"get": "logits"}, vector)

    def hidden(self) -> Ticket[list[Any]]:
        """Start it; for each place the last hidden state after the final norm, f32."""
        return self._many({"get": "hidden"}, vector)


class Pred(_Pass):
    """A forward pass in the making; awaiting it alone gives the best next token."""

    def all(self) -> PredMany:
        """Want a result for every token."""
        return PredMany(self._kv, self._tokens, self._positions, {**self._given, "at": "all"})

    def at(self, indices: Sequence[int]) -> PredMany:
        """Want results for the tokens with these indices."""
        given = {**self._given, "at": list(indices)}
        return PredMany(self._kv, self._tokens, self._positions, given)

    def __await__(self) -> Generator[Any, None, Choice]:
        return self.argmax().__await__()

    def argmax(self) -> Ticket[Choice]:
        """Start it; the best token."""
        return self._start({}, choice)

    def sample(self, sampling: Sampling) -> Ticket[Choice]:
        """Start it; a token drawn by `temperature`, `top_k`, `top_p`, `min_p` and `seed`."""
        return self._start(sampling.get(), choice)

    def argmax_scored(self, k: int) -> Ticket[Scored]:
        """Start it; the best token, and the best `k`, at most 20."""
        return self._start({"logprobs": k}, scored)

    def sample_scored(self, sampling: Sampling, k: int) -> Ticket[Scored]:
        """Start it; a token drawn at random, and the best `k`, at most 20."""
        return self._start({**sampling.get(), "logprobs": k}, scored)

    def top(self, k: int) -> Ticket[list[Choice]]:
        """Start it; the best `k` tokens, best first."""
        return self._start({"get": {"top": k}}, choices)

    def of(self, tokens: Sequence[int]) -> Ticket[list[float]]:
        """Start it; the log-probability of each of these tokens."""
        return self._start({"get": {"of": list(tokens)}}, floats)

    def logits(self) -> Ticket[Any]:
        """Start it; the whole vocabulary's logits, f32: a NumPy array if NumPy is there."""
        return self._start({"get": "logits"}, vector)

    def hidden(self) -> Ticket[Any]:
        """Start it; the last hidden state after the final norm, f32."""
        return self._start({"get": "hidden"}, vector)


def pass_options(
    *,
    logit_bias: Mapping[int, float] | None = None,
    bias_mask: tuple[TokenSet, float] | None = None,
    repetition_penalty: tuple[TokenSet, float] | None = None,
    allowed_tokens: TokenSet | None = None,
    constraint: Constraint | None = None,
    constraint_since: int | None = None,
    parents: Sequence[int] | None = None,
    keep: bool = True,
    share: bool = False,
    adapter: str | None = None,
) -> dict[str, Any]:
    """Return the options of a pass, as far as they are no defaults."""
    given = token_options(
        logit_bias or {},
        bias_mask,
        repetition_penalty,
        allowed_tokens,
    )
    given |= constraint_options(constraint, constraint_since)
    if parents is not None:
        given["parents"] = list(parents)
    if not keep:
        given["keep"] = False
    if share:
        given["share"] = True
    if adapter:
        given["adapter"] = adapter
    return given
