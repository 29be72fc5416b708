"""What a request asks of its prompt: log-probabilities, and a gap to fill."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from symphony_kernel import tiny_model
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.support.gateway.openai_client import (
    MESSAGES,
    MODEL,
    PROMPT,
    chat,
    complete,
    connect,
    text,
)
from tests.support.server.server import RunningServer, running_server

INFILL = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
LONG = PROMPT * 20  # more tokens than one pass scores


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with connect(server) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model.path() / "tokenizer.json"))


def prompt_logprobs(answer: Any) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = answer.model_extra["prompt_logprobs"]
    return found


@pytest.mark.parametrize("count", [0, 3])
def test_prompt_logprobs_equal_transformers(
    client: openai.OpenAI, tokenizer: Tokenizer, count: int
) -> None:
    ids = tokenizer.encode(LONG).ids
    assert len(ids) > 128
    peer: Any = AutoModelForCausalLM.from_pretrained(tiny_model.path(), dtype=torch.float32)
    with torch.inference_mode():
        logs = peer.eval()(torch.tensor([ids])).logits[0].log_softmax(-1)
    answer = complete(client, ids, max_tokens=2, extra_body={"prompt_logprobs": count})
    first, *rest = prompt_logprobs(answer.choices[0])
    assert first is None
    assert len(rest) == len(ids) - 1
    for place, (own_token, found) in enumerate(zip(ids[1:], rest, strict=True)):
        assert found is not None
        best = logs[place].topk(count).indices.tolist()
        assert set(found) == {str(each) for each in [own_token, *best]}
        for each, entry in found.items():
            assert entry["logprob"] == pytest.approx(logs[place, int(each)].item(), abs=1e-3)
            ranks = {str(token): rank for rank, token in enumerate(best, 1)}
            assert entry["rank"] == ranks.get(each)
    own = rest[0]
    assert own is not None
    assert own[str(ids[1])]["decoded_token"] == tokenizer.decode([ids[1]])
    assert text(client, ids, max_tokens=2) == answer.choices[0].text


def test_prompt_logprobs_are_of_each_choices_prompt(client: openai.OpenAI) -> None:
    prompts = ["import os", "class Reader:"]
    extra = {"prompt_logprobs": 1}
    alone = [complete(client, each, max_tokens=1, extra_body=extra) for each in prompts]
    expected = [prompt_logprobs(answer.choices[0]) for answer in alone]
    both = complete(client, prompts, n=2, max_tokens=1, extra_body=extra, temperature=1, seed=1)
    found = [prompt_logprobs(choice) for choice in both.choices]
    assert [list(each[1] or {}) for each in found] == [
        list(expected[index][1] or {}) for index in (0, 0, 1, 1)
    ]
    fields: dict[str, Any] = {"echo": True, "logprobs": 2, "max_tokens": 1}
    echoed = complete(client, prompts[0], **fields).choices[0]
    choice = complete(client, prompts[0], **fields, extra_body=extra).choices[0]
    assert choice.logprobs == echoed.logprobs, "with as many as `logprobs` says"
    assert prompt_logprobs(choice) == expected[0]


def test_prompt_logprobs_of_a_chat_are_the_answers(client: openai.OpenAI) -> None:
    answer = chat(client, max_tokens=1, extra_body={"prompt_logprobs": 0})
    found = prompt_logprobs(answer)
    assert len(found) == answer.usage.prompt_tokens
    assert "prompt_logprobs" not in (chat(client, max_tokens=1).model_extra or {})
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, extra_body={"prompt_logprobs": 1}
        )
    assert refused.value.param == "prompt_logprobs"


@pytest.mark.parametrize("penalty", [1.4, 0.8])
def test_repetition_penalty_is_that_of_transformers(
    client: openai.OpenAI, tokenizer: Tokenizer, penalty: float
) -> None:
    peer: Any = AutoModelForCausalLM.from_pretrained(tiny_model.path(), dtype=torch.float32).eval()
    ids = torch.tensor([tokenizer.encode(PROMPT).ids])
    with torch.inference_mode():
        whole = peer.generate(
            ids, max_new_tokens=24, do_sample=False, attention_mask=torch.ones_like(ids),
            repetition_penalty=penalty, eos_token_id=None,
        )  # fmt: skip
    extra = {"repetition_penalty": penalty, "ignore_eos": True, "return_token_ids": True}
    found = complete(client, ids[0].tolist(), extra_body=extra).choices[0]
    assert found.model_extra == {"token_ids": whole[0, ids.shape[1] :].tolist()}
    assert found.text != text(client, ids[0].tolist(), extra_body={"ignore_eos": True})
    both = complete(client, ids[0].tolist(), n=2, extra_body=extra).choices
    assert [choice.text for choice in both] == [found.text] * 2


def test_suffix_without_infill_tokens_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no fill-in-the-middle tokens") as refused:
        complete(client, suffix="x")
    assert (refused.value.param, refused.value.code) == ("suffix", "unsupported_parameter")


@pytest.fixture(scope="module")
def infill_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, whose last three tokens are those of a gap."""
    folder = tmp_path_factory.mktemp("infill") / MODEL
    shutil.copytree(tiny_model.path(), folder)
    path = folder / "tokenizer.json"
    parsed = json.loads(path.read_text())
    vocabulary = parsed["model"]["vocab"]
    last = sorted(vocabulary, key=vocabulary.get)[-3:]
    parsed["model"]["merges"] = [
        merge
        for merge in parsed["model"]["merges"]
        if "".join(merge.split(" ") if isinstance(merge, str) else merge) not in last
    ]
    for name, old in zip(INFILL, last, strict=True):
        vocabulary[name] = vocabulary.pop(old)
        parsed["added_tokens"].append(
            {**parsed["added_tokens"][0], "id": vocabulary[name], "content": name}
        )
    path.write_text(json.dumps(parsed))
    return folder


def test_suffix_is_put_around_the_gap(infill_model: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(infill_model / "tokenizer.json"))
    before, hole, end = (tokenizer.get_vocab()[name] for name in INFILL)
    bos = tokenizer.encode("").ids
    prefix, suffix = (
        tokenizer.encode(each, add_special_tokens=False).ids for each in (PROMPT, "\n    return x")
    )
    ids = [*bos, before, *prefix, hole, *suffix, end]
    with (
        running_server(tmp_path, "--model", str(infill_model), executor="torch") as server,
        connect(server) as client,
    ):
        fields: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "temperature": 0}
        whole = client.completions.create(prompt=ids, **fields)
        gap = client.completions.create(prompt=PROMPT, suffix="\n    return x", **fields)
        assert gap.choices[0].text == whole.choices[0].text
        assert gap.usage is not None
        assert gap.usage.prompt_tokens == len(ids)
        tokens = client.completions.create(
            prompt=[[*prefix], prefix], suffix="\n    return x", **fields
        )
        assert tokens.usage is not None
        assert tokens.usage.prompt_tokens == 2 * (len(ids) - len(bos))
        with pytest.raises(openai.BadRequestError):
            client.completions.create(prompt=PROMPT, suffix="x", echo=True, **fields)
