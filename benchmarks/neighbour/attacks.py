"""The attacks, one entry each: how many clients, and what each of them does again and again.

To add an attack, add an entry to `ATTACKS`. `clients` carries entries out, `rounds` measures
beside them. An entry is a tuple of crowds:

    Requests   clients that POST a body and read the whole answer
    Runs       clients that run a program; a program that `says_ready` sends one message when its
               load is complete
    Uploads    clients that upload a module, each time another one
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.neighbour import guests
from benchmarks.neighbour.guests import Branches, branches, tokenizers

PROMPT = "Once upon a time there was a little girl who liked to read. " * 2
LONG_PROMPT_BYTES = 5_200
VICTIM_STREAMS = 2
COMPLETION_TOKENS = 96  # of an honest completion
ATTACK_TOKENS = 500  # of each choice of a hostile one
FILE_ENTRIES = 8_000  # where the model's context has room for them
BODY_BYTES = 7_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """What an attack is fitted to: the served model's name and context."""

    model: str
    context: int


@dataclass(frozen=True, slots=True)
class Requests:
    """Clients that POST `body(target, number)`; `refused`: the attack is that of a 400."""

    clients: int
    body: Callable[[Target, int], bytes]
    refused: bool = False
    path: str = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Runs:
    """Clients that run `module(target)`."""

    clients: int
    module: Callable[[Target], bytes]
    says_ready: bool = True


@dataclass(frozen=True, slots=True)
class Uploads:
    """Clients that upload `module()`."""

    clients: int
    module: Callable[[], bytes]


Crowd = Requests | Runs | Uploads


# -- Bodies ----------------------------------------------------------------------------------------
def completion(
    *, tokens: int = ATTACK_TOKENS, stream: bool = False, **more: Any
) -> Callable[[Target, int], bytes]:
    """Return the body of a completion of exactly so many tokens."""

    def body(target: Target, _: int) -> bytes:
        wanted = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": stream}
        return _encoded(target, wanted | more)

    return body


def many_keys(target: Target, number: int) -> bytes:
    """Return a large body: every second one has a `logit_bias`, the others unknown fields."""
    return _many_keys(target, biased=bool(number % 2))


@cache
def _many_keys(target: Target, biased: bool) -> bytes:
    entries: dict[str, object] = {str(key): 1 for key in range(BODY_BYTES // 12)}
    return _encoded(target, {"logit_bias": entries} if biased else entries)


def hostile_constraint(target: Target, number: int) -> bytes:
    """Return a completion with the next of `CONSTRAINTS`, in a form that no earlier one had."""
    named = CONSTRAINTS[number % len(CONSTRAINTS)]
    field, text = named
    text = text.replace("NONCE", f"x{number}")
    constraint = json.loads(text) if field == "guided_json" else text
    return _encoded(target, {"max_tokens": 64, field: constraint, "temperature": 1})


def _encoded(target: Target, fields: dict[str, object]) -> bytes:
    return json.dumps({"model": target.model, "prompt": PROMPT} | fields).encode()


_ALTERNATIVES = "|".join(f"[a-z]{{{n}}}[0-9]{{1,300}}" for n in range(1, 90))
_NESTED = '{"type": "object", "properties": {"NONCE": ' * 24 + '{"type": "string"}' + "}}" * 24
_OPTIONAL = ", ".join(f'"p{i}": {{"type": ["integer", "string", "null"]}}' for i in range(300))
_ANY_OF = ", ".join(
    f'{{"type": "object", "properties": {{"k{i % 7}": {{"type": "string", "maxLength": {i}}}}}}}'
    for i in range(1, 200)
)
CONSTRAINTS = (
    ("guided_regex", "NONCE(.*a.{200}b)*"),  # very many states
    ("guided_regex", "NONCE((a{0,60}b{0,60}c{0,60}){0,60}d){0,60}"),  # nested repetitions
    ("guided_regex", f"NONCE({_ALTERNATIVES})+"),
    ("guided_json", _NESTED),
    ("guided_json", f'{{"type": "object", "title": "NONCE", "properties": {{{_OPTIONAL}}}}}'),
    ("guided_json", f'{{"title": "NONCE", "anyOf": [{_ANY_OF}]}}'),
    ("guided_grammar", 'start: "NONCE" e\ne: e e | e e e | "a" | "b" | /[ab]+/\n'),  # ambiguous
)  # fmt: skip


# -- Programs --------------------------------------------------------------------------------------
def lip(
    number: int,
    call: str = "generate",
    base: int = 0,
    share: str = "fork",
    **options: Any,
) -> Callable[[Target], bytes]:
    """Return how a LIP with so many branches is made: see `guests.Branches`."""
    shape = Branches(number, call, tuple(options.items()), base, share)
    return lambda target: branches(shape, target.context)


def always(module: bytes) -> Callable[[Target], bytes]:
    """Return how a module is made that is the same for every model."""
    return lambda _: module


_TRUNCATED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.999999, "top_k": 40_000}

# -- The table -------------------------------------------------------------------------------------
OLD: dict[str, tuple[Crowd, ...]] = {
    "loops": (Runs(12, always(guests.LOOPS), says_ready=False),),
    "forks": (Runs(4, always(guests.FORKS), says_ready=False),),
    "files": (Runs(6, always(guests.FILES), says_ready=False),),
    "talk": (Runs(6, always(guests.TALK), says_ready=False),),
    "prompts": (Runs(8, always(guests.PROMPTS), says_ready=False),),
    "uploads": (Uploads(2, guests.bomb),),
}
ATTACKS: dict[str, tuple[Crowd, ...]] = {
    # An honest tenant that wants as much as the victim: the baseline.
    "equal": (Requests(VICTIM_STREAMS, completion(tokens=COMPLETION_TOKENS, stream=True)),),
    # One request of the OpenAI route, or many.
    "n256": (Requests(1, completion(n=256)),),
    "n1024": (Requests(1, completion(n=1024)),),
    "n256sampled": (Requests(1, completion(n=256, logprobs=20, **_TRUNCATED)),),
    "requests200": (Requests(200, completion(tokens=COMPLETION_TOKENS, stream=True)),),
    # Branches of one LIP, or one branch of many.
    "generate64": (Runs(1, lip(64)),),
    "generate256": (Runs(1, lip(256)),),
    "generate1000": (Runs(1, lip(1000)),),
    "pred64": (Runs(1, lip(64, "pred")),),
    "pred256": (Runs(1, lip(256, "pred")),),
    "pred1000": (Runs(1, lip(1000, "pred")),),
    "runs64": (Runs(64, lip(1)),),
    # Rows that are dear by what is asked of their distributions.
    "logits64": (Runs(1, lip(64, "pred", get="logits")),),
    "sampled16": (Runs(1, lip(16, "pred", get={"sample": _TRUNCATED}, logprobs=20)),),
    # Rows that are dear by the entries that they read.
    "extracts10": (Runs(1, lip(10, base=FILE_ENTRIES, share="extract")),),
    "extracts16": (Runs(1, lip(16, base=FILE_ENTRIES, share="extract")),),
    "forks64": (Runs(1, lip(64, base=FILE_ENTRIES)),),
    # Processors.
    "tokenize64": (Runs(64, always(tokenizers("0"))),),
    "tokenize200": (Runs(200, always(tokenizers("0"))),),
    "bodies": (Requests(8, many_keys, refused=True),),
    "constraints": (Requests(16, hostile_constraint),),
    **OLD,
}
# The worst of each cause. All attacks together would be milder: they take from each other.
MIXES = {
    "files+talk": ("files", "talk"),
    "files+talk+prompts+uploads": ("files", "talk", "prompts", "uploads"),
    "all": (
        "extracts10", *OLD, "n256", "n256sampled", "pred256", "logits64", "tokenize64", "bodies",
        "constraints",
    ),
}  # fmt: skip


def crowds(kind: str) -> list[Crowd]:
    """Return the crowds of an attack, of a mix, or of several joined by `+`.

    Raises:
        ValueError: There is no such attack; the message names those that there are.
    """
    names: Sequence[str] = MIXES.get(kind) or kind.split("+")
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        known = ", ".join([*ATTACKS, "all"])
        raise ValueError(f"there is no attack {', '.join(unknown)}; there are {known}")
    return [crowd for name in names for crowd in ATTACKS[name]]
