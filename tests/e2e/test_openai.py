"""OpenAI's own client against a real server: what it sends is answered as it expects."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from symphony import message_bytes
from symphony_kernel import tiny_model
from tokenizers import Tokenizer
from wasmtime import wat2wasm

from tests.support.examples import tokens_of
from tests.support.gateway.openai_client import (
    LONG_PROMPT,
    MESSAGES,
    MODEL,
    PROMPT,
    TOKENS,
    chat,
    complete,
    connect,
    joined,
    logprobs_of,
    respond,
    streamed,
    text,
    used,
)
from tests.support.server.server import RunningServer
from tests.support.worker.parity_guests import greedy


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with connect(server) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model.path() / "tokenizer.json"))


async def greedy_text(server: RunningServer, tokenizer: Tokenizer, prompt: str) -> str:
    """The same by a guest that makes a pass a token; it is compared with transformers elsewhere."""
    async with server.client() as own:
        program = await own.programs.upload(wat2wasm(greedy(TOKENS)), name="greedy-openai")
        result = await own.run(program["id"], input=prompt)
    data = b"".join(map(message_bytes, result["messages"]))
    tokens = np.frombuffer(data, "<u4").tolist()
    return str(tokenizer.decode(tokens, skip_special_tokens=True))


# --- Completions ---------------------------------------------------------------------------------
def test_completion_greedy_equals_a_program_that_decodes(
    server: RunningServer, client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    expected = asyncio.run(greedy_text(server, tokenizer, PROMPT))
    completion = complete(client, extra_body={"ignore_eos": True})
    assert completion.choices[0].text == expected
    assert completion.choices[0].finish_reason == "length"
    usage = used(completion)
    prompt_tokens = len(tokens_of(PROMPT))
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt_tokens, TOKENS)
    assert usage.total_tokens == prompt_tokens + TOKENS
    assert completion.object == "text_completion"
    assert completion.id.startswith("cmpl-")
    chunks = streamed(client, extra_body={"ignore_eos": True})
    assert joined(chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len(chunks) > 2, "as they come: tokens that come together share one"
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_completion_prompts_may_be_texts_or_tokens_one_or_many(client: openai.OpenAI) -> None:
    tokens = tokens_of(PROMPT)
    other = "class Reader:\n"
    alone = [text(client, PROMPT), text(client, other)]
    assert text(client, tokens) == alone[0]
    both = [choice.text for choice in complete(client, [PROMPT, other]).choices]
    assert both == alone
    ids = [tokens, tokens_of(other)]
    assert [choice.text for choice in complete(client, ids).choices] == alone
    assert used(complete(client, ids)).prompt_tokens == sum(map(len, ids))
    assert [choice.index for choice in complete(client, ids).choices] == [0, 1]


def test_completion_token_ids_are_returned_and_accepted_as_a_prompt(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    wanted: dict[str, Any] = {"extra_body": {"ignore_eos": True, "return_token_ids": True}}
    prompt = tokens_of(PROMPT)
    whole = complete(client, prompt, max_tokens=8, **wanted).choices[0]
    tokens = whole.model_extra["token_ids"] if whole.model_extra else []
    assert len(tokens) == 8
    assert tokenizer.decode(tokens, skip_special_tokens=True) == whole.text
    rest = complete(client, prompt + tokens[:5], max_tokens=3, **wanted).choices[0]
    assert rest.model_extra == {"token_ids": tokens[5:]}
    both = complete(client, [prompt, prompt[:-1]], n=2, max_tokens=8, **wanted).choices
    assert [len((c.model_extra or {})["token_ids"]) for c in both] == [8] * 4
    assert both[0].model_extra == {"token_ids": tokens}
    assert "token_ids" not in (complete(client, prompt).choices[0].model_extra or {})


def test_completion_text_begins_as_the_tokenizer_has_it(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    tokens = tokenizer.encode(PROMPT).ids
    assert tokens[0] == tokenizer.token_to_id("<|endoftext|>")
    usual = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0)
    assert usual.choices[0].text == text(client, tokens, max_tokens=8)
    assert used(usual).prompt_tokens == len(tokens)


def test_completion_with_n_computes_the_prompt_once(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 7, "n": 3}
    first, again = complete(client, **fields), complete(client, **fields)
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) == 3
    assert texts == [choice.text for choice in again.choices]
    assert texts[0] == text(client, temperature=1.0, seed=7)
    pieces: dict[int, str] = {}
    for chunk in streamed(client, **fields):
        for choice in chunk.choices:
            pieces[choice.index] = pieces.get(choice.index, "") + choice.text
    assert [pieces[i] for i in range(3)] == texts
    assert len(complete(client, n=2, temperature=0).choices) == 2
    assert text(client, n=2) == text(client)


def test_completion_with_best_of_returns_the_likeliest(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 3, "logprobs": 0}

    def score(choice: Any) -> float:
        logprobs = choice.logprobs.token_logprobs
        return float(sum(logprobs) / len(logprobs))

    all_five = sorted(complete(client, n=5, **fields).choices, key=score, reverse=True)
    best = complete(client, n=2, best_of=5, **fields)
    assert [c.text for c in best.choices] == [c.text for c in all_five[:2]]
    assert used(best).completion_tokens > 2 * TOKENS


@pytest.mark.parametrize("seed", [0, 1, 2**63, -5])
def test_completion_with_a_seed_repeats(client: openai.OpenAI, seed: int) -> None:
    fields: dict[str, Any] = {"temperature": 1.3, "seed": seed}
    assert text(client, **fields) == text(client, **fields)
    assert text(client, **fields) == joined(streamed(client, **fields))


def test_completion_without_a_seed_differs(client: openai.OpenAI) -> None:
    assert len({text(client, temperature=1.5) for _ in range(4)}) > 1


def test_completion_with_narrow_sampling_is_greedy(client: openai.OpenAI) -> None:
    best = text(client)
    for extra in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 0.0}):
        assert text(client, temperature=1.0, extra_body=extra) == best


def test_completion_with_stop_ends_before_it_also_across_tokens(client: openai.OpenAI) -> None:
    whole = text(client, max_tokens=48)
    tried = 0
    for start in range(3, len(whole) - 6, 5):
        stop = whole[start : start + 6]
        expected = whole[: whole.index(stop)]
        completion = complete(client, max_tokens=48, stop=stop)
        assert completion.choices[0].text == expected
        assert completion.choices[0].finish_reason == "stop"
        chunks = streamed(client, max_tokens=48, stop=["\0never", stop, "\1", "\2"])
        assert joined(chunks) == expected
        assert chunks[-1].choices[0].finish_reason == "stop"
        tried += 1
    assert tried > 5
    assert text(client, max_tokens=48, stop=[whole[-4:] + "\0"]) == whole


def test_completion_stream_never_splits_a_character(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    vocabulary = tokenizer.get_vocab()
    pieces = [vocabulary[c] for c in "\u00e2\u0124\u00ac"]  # the bytes of the euro sign, spelled
    fields: dict[str, Any] = {
        "temperature": 1.0,
        "logit_bias": dict.fromkeys(map(str, pieces), 100),
        "max_tokens": 200,
        "extra_body": {"ignore_eos": True},
    }
    characters = 0
    for seed in range(3):
        whole = text(client, seed=seed, **fields)
        assert all(ord(c) > 0x7F for c in whole)
        assert joined(streamed(client, seed=seed, **fields)) == whole
        characters += len(whole) - whole.count("\ufffd")
    assert characters > 5


def test_completion_with_min_tokens_or_ignore_eos_goes_past_the_end(client: openai.OpenAI) -> None:
    whole = complete(client, logprobs=0)
    spelled = logprobs_of(whole.choices[0]).tokens
    fifth = tokens_of(spelled[4])
    assert len(fifth) == 1
    early: dict[str, Any] = {"stop_token_ids": fifth}
    plain = complete(client, extra_body=early)
    assert plain.choices[0].finish_reason == "stop"
    place = spelled.index(spelled[4])
    assert used(plain).completion_tokens == place + 1
    assert plain.choices[0].text == "".join(spelled[:place])
    later = complete(client, extra_body={**early, "min_tokens": TOKENS - 2})
    assert used(later).completion_tokens >= TOKENS - 2
    assert spelled[4] not in later.choices[0].text[len(plain.choices[0].text) :][:1]
    streamed_later = streamed(client, extra_body={**early, "min_tokens": TOKENS - 2})
    assert joined(streamed_later) == later.choices[0].text


def test_completion_with_penalties_and_bias_changes(client: openai.OpenAI) -> None:
    token = tokens_of(" the")[0]
    wanted = text(client, logit_bias={str(token): 100}, max_tokens=5)
    assert wanted == " the" * 5
    punished = text(client, logit_bias={str(token): 100}, max_tokens=80, frequency_penalty=2.0)
    assert punished.startswith(" the" * 40)
    assert punished != " the" * 80
    assert text(client, presence_penalty=2.0, max_tokens=64) != text(client, max_tokens=64)


def test_completion_with_echo_begins_with_the_prompt(client: openai.OpenAI) -> None:
    assert text(client, echo=True) == PROMPT + text(client)
    tokens = tokens_of(PROMPT)
    assert joined(streamed(client, tokens, echo=True)) == PROMPT + text(client)
    only = complete(client, echo=True, max_tokens=0)
    assert only.choices[0].text == PROMPT
    assert used(only).completion_tokens == 0


def test_completion_logprobs_are_those_of_the_chosen_tokens(client: openai.OpenAI) -> None:
    completion = complete(client, logprobs=0)
    logprobs = logprobs_of(completion.choices[0])
    assert "".join(logprobs.tokens) == completion.choices[0].text
    assert len(logprobs.token_logprobs) == len(logprobs.tokens) == TOKENS
    assert all(p is not None and p <= 0 for p in logprobs.token_logprobs)
    for offset, token in zip(logprobs.text_offset, logprobs.tokens, strict=True):
        assert completion.choices[0].text[offset:].startswith(token)
    chunks = streamed(client, logprobs=0)
    parts: Any = [chunk.choices[0].logprobs for chunk in chunks]
    assert [p for part in parts for p in part.token_logprobs] == logprobs.token_logprobs
    assert [p for part in parts for p in part.text_offset] == logprobs.text_offset


@pytest.mark.parametrize("count", [0, 3])
def test_completion_with_echo_and_logprobs_scores_the_prompt(
    client: openai.OpenAI, count: int
) -> None:
    prompt = LONG_PROMPT * 2 + PROMPT  # more than the program scores at once
    answer = complete(client, prompt, logprobs=count, max_tokens=8).choices[0]
    scored = complete(client, prompt + answer.text, logprobs=count, echo=True, max_tokens=0)
    choice = scored.choices[0]
    assert choice.text == prompt + answer.text
    scores, wanted = logprobs_of(choice), logprobs_of(answer)
    tokens, chances = scores.tokens, scores.token_logprobs
    assert "".join(tokens) == choice.text
    assert len(tokens) > 128
    assert chances[0] is None
    generated = len(wanted.tokens)
    assert tokens[-generated:] == wanted.tokens
    assert chances[-generated:] == pytest.approx(wanted.token_logprobs, abs=1e-3)
    if count:
        top = scores.top_logprobs
        assert all(len(best) >= count for best in top[1:])
        assert max(top[-1].values()) == pytest.approx(chances[-1], abs=1e-3)
    both = complete(client, prompt, logprobs=count, echo=True, max_tokens=8).choices[0]
    assert both.text == choice.text
    assert logprobs_of(both).token_logprobs[1:] == pytest.approx(chances[1:], abs=1e-3)


def test_completion_top_logprobs_are_the_likeliest(client: openai.OpenAI) -> None:
    found = logprobs_of(complete(client, logprobs=4, temperature=1.0, seed=5).choices[0])
    chosen = zip(found.top_logprobs, found.tokens, found.token_logprobs, strict=True)
    for top, token, chance in chosen:
        assert 4 <= len(top) <= 5
        assert top[token] == chance
        assert sum(np.exp(list(top.values()))) <= 1.001
    answer = chat(client, max_tokens=5, logprobs=True, top_logprobs=20)
    for entry in logprobs_of(answer.choices[0]).content:
        likely = [other.logprob for other in entry.top_logprobs]
        assert len(likely) == 20
        assert likely == sorted(likely, reverse=True)


def test_completion_of_a_cached_prompt_does_not_compute_it_again(client: openai.OpenAI) -> None:
    def cached(**fields: Any) -> tuple[str, int]:
        completion = complete(client, LONG_PROMPT + "x = 1\n", **fields)
        return completion.choices[0].text, used(completion).prompt_tokens_details.cached_tokens

    first, _ = cached()
    again, tokens = cached()
    assert again == first
    assert tokens >= 32
    assert tokens % 16 == 0
    assert cached(n=2)[1] == tokens


async def test_completion_stream_ends_with_usage_and_done(server: RunningServer) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3, "stream": True,
            "stream_options": {"include_usage": True}, "temperature": 0}  # fmt: skip
    async with server.session() as session, session.post("/v1/completions", json=body) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        events = (await response.text()).split("\n\n")
    assert events[-1] == ""
    assert events[-2] == "data: [DONE]"
    last = json.loads(events[-3].removeprefix("data: "))
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    earlier = [json.loads(event.removeprefix("data: ")) for event in events[:-3]]
    assert all(chunk["usage"] is None for chunk in earlier)


# --- Chat ----------------------------------------------------------------------------------------
def test_chat_messages_go_through_the_models_template(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=TOKENS, temperature=0
    )
    rendered = '<|endoftext|>"""Code"""\n\n# read a file\n'
    tokens = tokens_of(rendered)
    assert answer.choices[0].message.content == text(client, tokens)
    assert answer.choices[0].message.role == "assistant"
    assert used(answer).prompt_tokens == len(tokens)
    parts: Any = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]}
             for m in MESSAGES]  # fmt: skip
    chunks = list(chat(client, parts, stream=True, stream_options={"include_usage": True}))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == answer.choices[0].message.content
    assert [delta.role for delta in deltas if delta.role] == ["assistant"]
    assert chunks[-1].usage == answer.usage or chunks[-1].usage is not None
    assert chunks[-2].choices[0].finish_reason == answer.choices[0].finish_reason


def test_chat_logprobs_are_returned(client: openai.OpenAI) -> None:
    answer = chat(client, max_tokens=5, logprobs=True)
    tokens = logprobs_of(answer.choices[0]).content
    assert "".join(t.token for t in tokens) == answer.choices[0].message.content
    assert all(bytes(t.bytes).decode() == t.token for t in tokens)


# --- Responses -----------------------------------------------------------------------------------
def test_responses_answer_a_text(client: openai.OpenAI) -> None:
    response = respond(client, instructions="Code")
    assert response.output_text == chat(client).choices[0].message.content
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert (used(response).output_tokens, response.instructions) == (TOKENS, "Code")
    events = list(respond(client, MESSAGES, stream=True))
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == response.output_text == events[-1].response.output_text
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]  # fmt: skip
    assert kinds[-4:] == ["response.output_text.done", "response.content_part.done",
                          "response.output_item.done", "response.incomplete"]  # fmt: skip


def test_responses_that_end_by_themselves_are_completed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"input": "read a file", "extra_body": {"stop": "("}, "temperature": 0}
    response = client.responses.create(model=MODEL, **asked)
    assert response.status == "completed"
    assert response.incomplete_details is None
    with client.responses.stream(model=MODEL, **asked) as stream:
        assert stream.get_final_response().output_text == response.output_text
