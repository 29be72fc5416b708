"""Forward passes."""

import _lip
from asyncio import Ticket

from symphony.packing import choice, choices, floats, options, scored, split, vector
from symphony.sampling import constraint_options, token_options


def _nothing(_):
    return None


class _Pass:
    """A forward pass in the making: what is wanted of it starts it."""

    def __init__(self, kv, tokens, positions, given):
        self._kv, self._tokens, self._positions, self._given = kv, tokens, positions, given

    def _start(self, get, decode):
        given = dict(self._given)
        given.update(get)
        number = _lip.pred(self._kv.number, self._tokens, self._positions, options(given))
        return Ticket("pred", number, decode)

    def prefill(self):
        """Start it for the file's sake: its tokens are appended, and nothing else is asked."""
        return self._start({"get": "none"}, _nothing)


class PredMany(_Pass):
    """A forward pass with a result for each of several places, in order."""

    def _many(self, get, read):
        at = self._given["at"]
        places = len(self._tokens) if at == "all" else len(at)
        return self._start(get, lambda packed: split(packed, places, read))

    def argmax(self):
        """Start it; the best token of each place."""
        return self._many({}, choice)

    def sample(self, sampling):
        """Start it; a token drawn for each place."""
        return self._many(sampling.get(), choice)

    def argmax_scored(self, k):
        """Start it; the best token of each place, and the best `k`, at most 20."""
        return self._many({"logprobs": k}, scored)

    def sample_scored(self, sampling, k):
        """Start it; a token drawn for each place, and the best `k`, at most 20."""
        return self._many(dict(sampling.get(), logprobs=k), scored)

    def top(self, k):
        """Start it; the best `k` tokens of each place, best first."""
        return self._many({"get": {"top": k}}, choices)

    def of(self, tokens):
        """Start it; for each place the log-probability of each of these tokens."""
        return self._many({"get": {"of": list(tokens)}}, floats)

    def logits(self):
        """Start it; for each place the whole vocabulary's logits, an `array` of f32."""
        return self._many({"get": "logits"}, vector)

    def hidden(self):
        """Start it; for each place the last hidden state after the final norm, f32."""
        return self._many({"get": "hidden"}, vector)


class Pred(_Pass):
    """A forward pass in the making; awaiting it alone gives the best next token."""

    def all(self):
        """Want a result for every token."""
        return PredMany(self._kv, self._tokens, self._positions, dict(self._given, at="all"))

    def at(self, indices):
        """Want results for the tokens with these indices."""
        given = dict(self._given, at=list(indices))
        return PredMany(self._kv, self._tokens, self._positions, given)

    def __await__(self):
        return self.argmax().__await__()

    __iter__ = __await__

    def argmax(self):
        """Start it; the best token."""
        return self._start({}, choice)

    def sample(self, sampling):
        """Start it; a token drawn by `temperature`, `top_k`, `top_p`, `min_p` and `seed`."""
        return self._start(sampling.get(), choice)

    def argmax_scored(self, k):
        """Start it; the best token, and the best `k`, at most 20."""
        return self._start({"logprobs": k}, scored)

    def sample_scored(self, sampling, k):
        """Start it; a token drawn at random, and the best `k`, at most 20."""
        return self._start(dict(sampling.get(), logprobs=k), scored)

    def top(self, k):
        """Start it; the best `k` tokens, best first."""
        return self._start({"get": {"top": k}}, choices)

    def of(self, tokens):
        """Start it; the log-probability of each of these tokens."""
        return self._start({"get": {"of": list(tokens)}}, floats)

    def logits(self):
        """Start it; the whole vocabulary's logits, an `array` of f32."""
        return self._start({"get": "logits"}, vector)

    def hidden(self):
        """Start it; the last hidden state after the final norm, f32."""
        return self._start({"get": "hidden"}, vector)


def pass_options(given):
    """Return the options of a pass, as far as they are no defaults."""
    since = given.pop("constraint_since", None)
    found = token_options(
        given.pop("logit_bias", None),
        given.pop("bias_mask", None),
        given.pop("repetition_penalty", None),
        given.pop("allowed_tokens", None),
    )
    found.update(constraint_options(given.pop("constraint", None), since))
    parents = given.pop("parents", None)
    if parents is not None:
        found["parents"] = list(parents)
    if not given.pop("keep", True):
        found["keep"] = False
    if given.pop("share", False):
        found["share"] = True
    adapter = given.pop("adapter", None)
    if adapter:
        found["adapter"] = adapter
    for name in given:
        raise TypeError("pred has no parameter '%s'" % name)
    return found
