"""What a tokenizer puts before a text."""

import json
from typing import Any

import pytest
from symphony_runtime.gateway.openai.requests.model import read_model, text_prefix

TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
    ],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1]}, "</s>": {"id": "</s>", "ids": [2]}},
}


@pytest.mark.parametrize(
    ("processor", "prefix"),
    [
        (None, ()),
        ({"type": "ByteLevel"}, ()),
        (TEMPLATE, (1,)),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, TEMPLATE]}, (1,)),
    ],
)
def test_it_is_the_template_s(processor: Any, prefix: tuple[int, ...]) -> None:
    assert text_prefix(json.dumps({"post_processor": processor}).encode()) == prefix


def test_a_model_without_tokenizer_has_none() -> None:
    about = {"model": {"name": "m", "vocab_size": 5, "eos": [1], "max_context": 9}}
    assert read_model({**about, "tokenizer": b""}).prefix == ()
