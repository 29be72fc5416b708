"""What a request is checked against: the model, and the limits of its tenant.

A request is a run of the shipped program, one instance. Each answer is a branch of it:

    a KV file and a ticket for each answer, and one more for a prompt with several answers
    the tokens of all prompts and answers, as computed tokens and as KV entries
    the results that a branch's ticket promises, which grow with `logprobs`

So the limits of a run bound the answers, tokens and log-probabilities. The gateway cannot count a
prompt's tokens: the program does, and gets `tokens` and `kv_tokens` with its job.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from symphony_kernel.protocol.limits import (
    INSTANCE_HANDLES_MAX,
    RUN_RESULT_BYTES_MAX,
    RUN_TICKETS_MAX,
)

from symphony_runtime.config.limits import TenantLimits
from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.gateway.openai.formats import AnswerFormat, detect_format

# What each limit is in one instance; a run may have several.
_OF_INSTANCE: Final = {
    "handles": INSTANCE_HANDLES_MAX,
    "tickets": RUN_TICKETS_MAX,
    "result_bytes": RUN_RESULT_BYTES_MAX,
}
# Fill-in-the-middle tokens: Qwen and CodeGemma, StarCoder, DeepSeek, Code Llama.
_INFILL: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
)
_BRANCHES: Final = ("handles", "tickets", "kv_files")  # of each, one for a branch
_AHEAD: Final = 65  # results of a branch that its ticket may hold: `program/src/branch.rs`
_RESULT_BYTES: Final = 8  # of a token, and of each of its likeliest alternatives


@dataclass(frozen=True, slots=True)
class Model:
    """The served model. `prefix`: the tokens that its tokenizer puts before a text."""

    name: str
    vocab_size: int
    eos: tuple[int, ...]
    context: int
    prefix: tuple[int, ...] = ()
    answers: AnswerFormat = field(default_factory=AnswerFormat)
    suffix: tuple[int, ...] = ()  # that it puts after an embedded text
    infill: tuple[int, int, int] | None = None  # before a text, before its suffix, before the gap
    width: int = 0  # of a hidden state
    pooling: str = "last"
    dimensions: tuple[int, ...] | None = ()  # that embeddings may be cut to; None: any
    adapter: str = ""  # the tenant's adapter that the request names behind the model
    draft_tokens: int = 0  # for one pass


def read_model(about: dict[str, Any], tool_format: str = "auto", draft_tokens: int = 0) -> Model:
    """Return the model in a kernel's `Welcome`. The other arguments are the operator's."""
    model, embedding = about["model"], about.get("embedding") or {}
    tokenizer = json.loads(about.get("tokenizer") or b"{}")
    prefix, suffix = text_specials(tokenizer)
    cuts = embedding.get("dimensions", [])
    return Model(
        model["name"],
        model["vocab_size"],
        tuple(model["eos"]),
        model["max_context"],
        prefix,
        detect_format(about.get("chat_template"), tokenizer, tool_format),
        suffix,
        infill_tokens(tokenizer),
        model.get("hidden_size", 0),
        embedding.get("pooling", "last"),
        None if cuts is None else tuple(cuts),
        draft_tokens=draft_tokens,
    )


def text_specials(tokenizer: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens that a tokenizer.json puts before and after a single text."""
    processor = tokenizer.get("post_processor") or {}
    templates = [p for p in (processor, *processor.get("processors", ())) if "single" in p]
    before, after = list[int](), list[int]()
    for template in templates:
        ids = before
        for piece in template["single"]:
            special = piece.get("SpecialToken")
            if special is None:
                ids = after  # behind the text
            else:
                ids += template["special_tokens"][special["id"]]["ids"]
    return tuple(before), tuple(after)


def infill_tokens(tokenizer: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Return the tokens before a text, before its suffix and before the gap, if there are any."""
    added = tokenizer.get("added_tokens") or ()
    ids = {token["content"]: token["id"] for token in added}
    for names in _INFILL:
        if ids.keys() >= set(names):
            before, hole, end = (int(ids[name]) for name in names)
            return before, hole, end
    return None


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of a request's run and of its tenant, by name."""

    limits: Mapping[str, int]

    @classmethod
    def of(cls, limits: TenantLimits) -> "RequestLimits":
        return cls({**limits.choose({}), "kv_files": limits.at_most("kv_files")})

    def instance_max(self, limit: str) -> int:
        """Return how much of a limit one instance may have."""
        return min(self.limits[limit], _OF_INSTANCE.get(limit, self.limits[limit]))

    def answers_max(self) -> tuple[int, str]:
        """Return how many answers there may be at most, and the limit that bounds them."""
        return min((self.instance_max(limit), limit) for limit in _BRANCHES)

    def check_field(self, field: str, value: int | None, limit: str, most: int) -> None:
        """Check a number against the maximum of a tenant's limit; OpenAIError 400."""
        if value is not None and value > most:
            shown = f"; it is {value}" if value < 1 << 64 else ""
            raise refused(f"`{field}` must be at most {most} ({named(limit)}){shown}", field)

    def check_answers(self, prompts: int, answers: int, logprobs: int | None) -> None:
        """Check that the limits allow so many answers to each prompt; OpenAIError 400."""
        branches = prompts * (answers + (answers > 1))
        most, limit = self.answers_max()
        asked = f"{_count(prompts, 'prompt')} with {_count(answers, 'answer')} each"
        if branches > most:
            words = f"{asked}: they take {branches} branches, at most {most} ({named(limit)})"
            raise refused(words, "n" if answers > 1 else "prompt")
        if logprobs:
            size = prompts * answers * _AHEAD * _RESULT_BYTES * (1 + logprobs)
            if size > (most := self.instance_max("result_bytes")):
                words = f"{asked} and {logprobs} log-probabilities a token: they take {size}"
                limit = named("result_bytes")
                raise refused(f"{words} bytes of results, at most {most} ({limit})", "logprobs")


def named(limit: str) -> str:
    """Return the words that say which limit a bound comes from."""
    return f"the tenant's limit `{limit}`"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
