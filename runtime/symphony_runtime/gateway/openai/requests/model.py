"""What requests are checked against: the model, as the kernel tells of it."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Model:
    """The model. `prefix`: the tokens that its tokenizer puts before a text."""

    name: str
    vocab_size: int
    eos: tuple[int, ...]
    context: int
    prefix: tuple[int, ...] = ()


def read_model(about: dict[str, Any]) -> Model:
    """Return the model in a kernel's `Welcome`."""
    model = about["model"]
    return Model(
        model["name"],
        model["vocab_size"],
        tuple(model["eos"]),
        model["max_context"],
        text_prefix(about.get("tokenizer") or b"{}"),
    )


def text_prefix(tokenizer: bytes) -> tuple[int, ...]:
    """Return the special tokens that a tokenizer.json puts before a single text, as others do."""
    processor = json.loads(tokenizer).get("post_processor") or {}
    templates = [p for p in (processor, *processor.get("processors", ())) if "single" in p]
    ids: list[int] = []
    for template in templates:
        for piece in template["single"]:
            special = piece.get("SpecialToken")
            if special is None:
                break  # the text
            ids += template["special_tokens"][special["id"]]["ids"]
    return tuple(ids)
