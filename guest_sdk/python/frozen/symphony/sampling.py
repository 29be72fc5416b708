"""How text is generated: how each token is chosen, and where the text ends."""

_GOLDEN = 0x9E37_79B9_7F4A_7C15  # keeps neighbours' seeds far apart
_SEEDS = 1 << 64
_DEFAULTS = {
    "max_tokens": None,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": None,
    "stop": (),
    "stop_token_ids": (),
    "exact": False,
    "logprobs": 0,
    "logit_bias": {},
    "bias_mask": None,
    "repetition_penalty": None,
    "allowed_tokens": None,
    "constraint": None,
    "constraint_since": None,
    "share": False,
    "adapter": None,
    "lookahead": None,
    "chunk": None,
}


class Sampling:
    """How text is generated, by the names of the OpenAI API and vLLM.

    Without any parameter it is the best token each time, until the model ends the text or its
    context is full. The Python SDK's page has what each parameter means.
    """

    def __init__(self, **given):
        for name in given:
            if name not in _DEFAULTS:
                raise TypeError("Sampling has no parameter '%s'" % name)
        self._given = given
        for name, value in _DEFAULTS.items():
            setattr(self, name, given.get(name, value))

    def replace(self, **changed):
        return Sampling(**dict(self._given, **changed))

    def branch(self, number):
        """Return the same for one of several branches: each number gives another seed."""
        if self.seed is None:
            return self
        return self.replace(seed=(self.seed + (number + 1) * _GOLDEN) % _SEEDS)

    @property
    def stop_texts(self):
        """The texts that end it."""
        if self.exact:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def stop_tokens(self, eos):
        """Return the tokens that end it, the model's own ends first."""
        return [] if self.exact else list(eos) + list(self.stop_token_ids)

    def chunked(self, count):
        """Return the same, with this chunk if nothing else is said."""
        chunk = self.chunk or count
        lookahead = chunk if self.lookahead is None else self.lookahead
        return self.replace(chunk=chunk, lookahead=lookahead)

    def get(self):
        """Return the option `get` of a pass, nothing if it takes the best token."""
        if self.temperature <= 0:
            return {}
        drawn = {
            "temperature": float(self.temperature),
            "top_k": self.top_k,
            "top_p": float(self.top_p),
            "min_p": float(self.min_p),
        }
        if self.seed is not None:
            drawn["seed"] = self.seed
        return {"get": {"sample": drawn}}

    def options(self, stop):
        """Return the options of a generation."""
        given = self.get()
        if self.max_tokens is not None:
            given["max"] = self.max_tokens
        if stop:
            given["stop"] = stop
        if self.lookahead is not None:
            given["ahead"] = self.lookahead
        if self.chunk is not None:
            given["lot"] = self.chunk
        given.update(
            token_options(
                self.logit_bias, self.bias_mask, self.repetition_penalty, self.allowed_tokens
            )
        )
        given.update(constraint_options(self.constraint, self.constraint_since))
        if self.logprobs:
            given["logprobs"] = self.logprobs
        if self.share:
            given["share"] = True
        if self.adapter:
            given["adapter"] = self.adapter
        return given


def token_options(bias, bias_mask, repetition, allowed):
    """Return what makes tokens likelier, less likely or impossible, as far as it is given."""
    given = {}
    if bias:
        given["bias"] = {token: float(value) for token, value in bias.items()}
    if bias_mask is not None:
        given["bias_mask"] = {"mask": bias_mask[0].mask, "value": float(bias_mask[1])}
    if repetition is not None:
        given["repetition"] = {"mask": repetition[0].mask, "penalty": float(repetition[1])}
    if allowed is not None:
        given["allow"] = allowed.mask
    return given


def constraint_options(constraint, since):
    if constraint is None:
        return {}
    given = {"constraint": constraint.handle}
    if since is not None:
        given["since"] = since
    return given
