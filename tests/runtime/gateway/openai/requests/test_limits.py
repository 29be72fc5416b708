"""What a request may ask for follows its tenant's limits, and a refusal names the limit."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from symphony_kernel.protocol.limits import INSTANCE_HANDLES_MAX
from symphony_runtime.config.limits import USUAL, Bound, TenantLimits
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.requests.limits import (
    Model,
    RequestLimits,
    read_model,
    text_specials,
)
from symphony_runtime.gateway.openai.requests.parsing import parse_chat, parse_completion

from tests.support.gateway.system import SystemRig
from tests.support.kernel.constrained import assets

MODEL = Model("m", 1_000, (0,), 2_048)


def limits_of(**limits: int) -> RequestLimits:
    return RequestLimits.of(TenantLimits({**USUAL, **{k: Bound(v, v) for k, v in limits.items()}}))


def completion(given: RequestLimits, **fields: Any) -> int:
    return parse_completion({"model": "m", "prompt": [1], **fields}, MODEL, given).choices


def refusal(given: RequestLimits, **fields: Any) -> tuple[str, str | None]:
    with pytest.raises(OpenAIError) as refused:
        completion(given, **fields)
    assert refused.value.status == 400
    return refused.value.detail, refused.value.param


@pytest.mark.parametrize("limit", ["handles", "tickets", "kv_files"])
def test_choices_take_a_branch_each_and_one_for_the_prompt(limit: str) -> None:
    given = limits_of(**{limit: 10})
    assert completion(given, prompt=["a"] * 10) == 10
    assert completion(given, n=9) == 9
    assert completion(given, n=2, prompt=["a"] * 3) == 6
    assert completion(given, n=1, best_of=9) == 1
    named = f"(the tenant's limit `{limit}`)"
    assert refusal(given, n=10) == (
        f"1 prompt with 10 answers each: they take 11 branches, at most 10 {named}", "n",
    )  # fmt: skip
    assert refusal(given, n=11) == (f"`n` must be at most 10 {named}; it is 11", "n")
    assert refusal(given, best_of=12)[1] == "best_of"
    words, param = refusal(given, prompt=["a"] * 11)
    assert param == "prompt"
    assert "11 prompts with 1 answer each: they take 11 branches, at most 10" in words
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 10}
    with pytest.raises(OpenAIError, match="they take 11 branches, at most 10"):
        parse_chat(chat, MODEL, given)


def test_choices_by_default_are_an_instances_handles() -> None:
    most = INSTANCE_HANDLES_MAX - 1
    assert completion(limits_of(), n=most) == most
    assert "the tenant's limit `handles`" in refusal(limits_of(), n=most + 1)[0]
    # More for the run is more for its children: the program is one instance.
    assert limits_of(handles=1 << 20).answers_max() == (INSTANCE_HANDLES_MAX, "handles")


def test_tokens_and_logprobs_past_a_limit_are_refused() -> None:
    given = limits_of(tokens=50)
    for field in ("max_tokens", "min_tokens"):
        words = f"`{field}` must be at most 50 (the tenant's limit `tokens`); it is 51"
        assert refusal(given, **{field: 51}) == (words, field)
    words = "`logprobs` must be an integer from 0 to 20; it is 21"
    assert refusal(limits_of(), logprobs=21) == (words, "logprobs")
    # 65 results of 8 bytes for a token and as much for each of five others.
    small = limits_of(result_bytes=2 * 65 * 8 * 6)
    assert completion(small, n=2, logprobs=5) == 2
    words, param = refusal(small, n=3, logprobs=5)
    assert param == "logprobs"
    assert "at most 6240 (the tenant's limit `result_bytes`)" in words
    assert completion(small, n=3) == 3


# --- What the program counts ---------------------------------------------------------------------
def asked(tmp_path: Path, quotas: Mapping[str, int], **fields: Any) -> tuple[int, dict[str, Any]]:
    async def main() -> tuple[int, dict[str, Any]]:
        async with SystemRig(tmp_path, assets=assets(), step_ms=2) as system:
            async with system.admin() as admin:
                await admin.admin.change_tenant("default", quotas=dict(quotas))
            model = system.kernel._executor.model.name
            body = {"model": model, "max_tokens": 4, "ignore_eos": True, **fields}
            answer = await system.ask("POST", "/v1/completions", json=body)
            return answer.status, answer.json

    return asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("quotas", "fields", "words"),
    [
        ({"kv_tokens": 60}, {"prompt": [1] * 60},
         "the prompt has 60 tokens, and 4 are to follow; the tenant's limit `kv_tokens` is 60"),
        ({"tokens": 60}, {"prompt": [1] * 60},
         "60 tokens of prompts are to be computed, and answers to follow; the tenant's limit "
         "`tokens` of a run is 60"),
        ({"tokens": 60}, {"prompt": [[1] * 40, [2] * 40]}, "80 tokens of prompts are to be"),
    ],
)  # fmt: skip
def test_prompt_past_its_tenants_limit_is_refused(
    tmp_path: Path, quotas: dict[str, int], fields: dict[str, Any], words: str, stream: bool
) -> None:
    status, body = asked(tmp_path, quotas, **fields, stream=stream)
    assert (status, body["error"]["param"]) == (400, "prompt"), body
    assert words in body["error"]["message"]


@pytest.mark.parametrize(
    ("limit", "most", "fields"),
    [
        ("tokens", 60, {"prompt": [1] * 50, "max_tokens": 60}),
        ("kv_tokens", 60, {"prompt": [1] * 10, "n": 8, "max_tokens": 50}),
        ("wall_ms", 60, {"prompt": [1] * 10, "max_tokens": 60}),
        ("memory_bytes", 1 << 20, {"prompt": [1] * 10, "n": 64, "max_tokens": 60, "logprobs": 20}),
    ],
)
def test_limit_that_ends_a_run_is_a_client_error(
    tmp_path: Path, limit: str, most: int, fields: dict[str, Any]
) -> None:
    status, body = asked(tmp_path, {limit: most}, **fields)
    assert (status, body["error"]["code"]) == (400, "limit_exceeded"), body
    assert f"the tenant's limit `{limit}`" in body["error"]["message"]


def test_answer_within_its_tenants_tokens_is_complete(tmp_path: Path) -> None:
    status, body = asked(tmp_path, {"tokens": 60}, prompt=[1] * 50)
    assert status == 200, body
    assert body["choices"][0]["finish_reason"] == "length"


# --- The model -----------------------------------------------------------------------------------
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
    ("processor", "specials"),
    [
        (None, ((), ())),
        ({"type": "ByteLevel"}, ((), ())),
        (TEMPLATE, ((1,), (2,))),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, TEMPLATE]}, ((1,), (2,))),
    ],
)
def test_text_specials_are_the_tokenizer_templates(processor: Any, specials: Any) -> None:
    assert text_specials({"post_processor": processor}) == specials


def test_drafts_are_off_unless_the_operator_wants_them() -> None:
    about = {"model": {"name": "m", "vocab_size": 5, "eos": [1], "max_context": 9}}
    assert read_model(about).draft_tokens == 0
    assert read_model(about, draft_tokens=5).draft_tokens == 5


def test_text_prefix_without_a_tokenizer_is_empty() -> None:
    about = {"model": {"name": "m", "vocab_size": 5, "eos": [1], "max_context": 9}}
    assert read_model({**about, "tokenizer": b""}).prefix == ()
