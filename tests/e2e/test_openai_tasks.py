"""Embeddings, scores, ranks and tokens of a real server, against transformers' figures."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import openai
import pytest
import torch
from symphony_kernel import tiny_model
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.support.gateway.openai_client import MODEL, PROMPT, connect
from tests.support.server.server import RunningServer

Vector = npt.NDArray[np.float32]
LONG = PROMPT * 60  # more tokens than one pass for the mean
TEXTS = [PROMPT, "class Reader:\n", "# größer\n", LONG]
SMALL = 1e-3


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with connect(server) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model.path() / "tokenizer.json"))


@pytest.fixture(scope="module")
def peer() -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model.path(), dtype=torch.float32).eval()


def states_of(peer: Any, ids: list[int]) -> Vector:
    with torch.inference_mode():
        states: Vector = peer.model(torch.tensor([ids])).last_hidden_state[0].numpy()
    return states


def unit(vector: Vector) -> Vector:
    scaled: Vector = vector / np.linalg.norm(vector)
    return scaled


# --- Embeddings ----------------------------------------------------------------------------------
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_embeddings_equal_transformers(
    client: openai.OpenAI, tokenizer: Tokenizer, peer: Any, pooling: str
) -> None:
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    assert len(ids[-1]) > 512
    answer = client.embeddings.create(model=MODEL, input=TEXTS, extra_body={"pooling": pooling})
    assert [each.index for each in answer.data] == [0, 1, 2, 3]
    for each, tokens in zip(answer.data, ids, strict=True):
        states = states_of(peer, tokens)
        expected = states[-1] if pooling == "last" else states.mean(axis=0)
        assert np.abs(np.array(each.embedding) - unit(expected)).max() < SMALL
    count = sum(map(len, ids))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (count, count)


def test_embeddings_are_the_same_in_each_encoding(client: openai.OpenAI) -> None:
    # The client asks for base64 by itself and decodes it.
    packed = client.embeddings.create(model=MODEL, input=PROMPT).data[0].embedding
    plain = client.embeddings.create(model=MODEL, input=PROMPT, encoding_format="float")
    assert np.abs(np.array(packed) - np.array(plain.data[0].embedding)).max() < 1e-6
    raw = client.embeddings.with_raw_response.create(
        model=MODEL, input=PROMPT, encoding_format="base64"
    )
    assert isinstance(raw.http_response.json()["data"][0]["embedding"], str)
    assert math.isclose(float(np.linalg.norm(packed)), 1.0, abs_tol=1e-5)


def test_embeddings_of_tokens_are_those_of_the_text(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(PROMPT).ids
    of_text = client.embeddings.create(model=MODEL, input=PROMPT).data[0].embedding
    of_ids = client.embeddings.create(model=MODEL, input=ids).data[0].embedding
    of_lists = client.embeddings.create(model=MODEL, input=[ids, ids]).data
    assert np.abs(np.array(of_text) - np.array(of_ids)).max() < SMALL
    assert len(of_lists) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"dimensions": 7}, "dimensions"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [[1, 1 << 30]]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": "x " * 20_000}, "input"),
        ({"extra_body": {"pooling": "cls"}}, "pooling"),
        ({"extra_body": {"truncate": True}}, "truncate"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_embeddings_that_cannot_be_made_are_refused_by_name(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    asked = {"model": MODEL, "input": PROMPT, "extra_body": {"add_special_tokens": False}, **fields}
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(**asked)
    assert refused.value.param == param, refused.value


def test_embeddings_take_their_own_length_as_dimensions(client: openai.OpenAI) -> None:
    usual = client.embeddings.create(model=MODEL, input=PROMPT).data[0].embedding
    same = client.embeddings.create(model=MODEL, input=PROMPT, dimensions=len(usual))
    assert same.data[0].embedding == usual
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="text-embedding-3-small", input=PROMPT)


# --- Scores and ranks ----------------------------------------------------------------------------
DOCUMENTS = ["def read(path):", "the weather is fine", PROMPT * 40, "import os"]
QUERY = "how to read a file " * 40  # more tokens than one pass scores


def score_of(peer: Any, tokenizer: Tokenizer, query: str, document: str) -> float:
    """Return the geometric mean of the probabilities of the query's tokens, by transformers."""
    (bos,) = tokenizer.encode("").ids
    texts = f"Passage: {document}\nQuery:", f" {query}"
    before, after = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
    before = [bos, *before]
    ids = torch.tensor([before + after])
    with torch.inference_mode():
        logs = peer(ids).logits[0].log_softmax(-1)
    own = [logs[len(before) + i - 1, token].item() for i, token in enumerate(after)]
    return math.exp(sum(own) / len(own))


async def test_scores_equal_transformers(
    server: RunningServer, tokenizer: Tokenizer, peer: Any
) -> None:
    body = {"model": MODEL, "text_1": QUERY, "text_2": DOCUMENTS}
    status, answer = await server.ask("POST", "/v1/score", body)
    assert status == 200, answer
    expected = [score_of(peer, tokenizer, QUERY, document) for document in DOCUMENTS]
    assert [each["score"] for each in answer["data"]] == pytest.approx(expected, rel=1e-3)
    assert [each["index"] for each in answer["data"]] == [0, 1, 2, 3]
    pairs = {"text_1": ["one", "two"], "text_2": ["1", "2"]}
    status, answer = await server.ask("POST", "/v1/score", pairs)
    expected = [score_of(peer, tokenizer, *pair) for pair in (("one", "1"), ("two", "2"))]
    assert [each["score"] for each in answer["data"]] == pytest.approx(expected, rel=1e-3)
    status, answer = await server.ask("POST", "/v1/score", {"text_1": ["a"] * 2, "text_2": "b"})
    assert (status, answer["error"]["param"]) == (400, "text_1")


async def test_ranks_are_the_scores_in_order(
    server: RunningServer, tokenizer: Tokenizer, peer: Any
) -> None:
    body = {"model": MODEL, "query": "read a file", "documents": DOCUMENTS}
    status, answer = await server.ask("POST", "/v1/rerank", body)
    assert status == 200, answer
    scores = [score_of(peer, tokenizer, "read a file", document) for document in DOCUMENTS]
    order = sorted(range(4), key=lambda index: -scores[index])
    assert [each["index"] for each in answer["results"]] == order
    found = [each["relevance_score"] for each in answer["results"]]
    assert found == pytest.approx(sorted(scores, reverse=True), rel=1e-3)
    assert answer["results"][0]["document"] == {"text": DOCUMENTS[order[0]]}
    objects = {**body, "documents": [{"text": text} for text in DOCUMENTS], "top_n": 2,
               "return_documents": False}  # fmt: skip
    _, fewer = await server.ask("POST", "/v1/rerank", objects)
    assert fewer["results"] == [
        {"index": each["index"], "relevance_score": each["relevance_score"]}
        for each in answer["results"][:2]
    ]


# --- Tokens --------------------------------------------------------------------------------------
async def test_tokenize_has_the_tokens_of_the_tokenizer(
    server: RunningServer, tokenizer: Tokenizer
) -> None:
    text = "def größe(x):  # <|endoftext|>"
    _, whole = await server.ask("POST", "/tokenize", {"model": MODEL, "prompt": PROMPT})
    assert whole["tokens"] == tokenizer.encode(PROMPT).ids
    assert (whole["count"], whole["token_strs"]) == (len(whole["tokens"]), None)
    plain = {"prompt": text, "add_special_tokens": False, "return_token_strs": True}
    _, shown = await server.ask("POST", "/tokenize", plain)
    special = tokenizer.token_to_id("<|endoftext|>")
    assert special not in shown["tokens"], "its spelling is text"
    assert len(shown["token_strs"]) == shown["count"]
    _, back = await server.ask("POST", "/detokenize", {"tokens": shown["tokens"]})
    assert back == {"prompt": text}
    assert await server.ask("POST", "/detokenize", {"tokens": []}) == (200, {"prompt": ""})


async def test_tokenize_of_messages_fills_the_chat_template(
    server: RunningServer, client: openai.OpenAI
) -> None:
    messages: Any = [{"role": "user", "content": "read a file"}]
    _, answer = await server.ask("POST", "/tokenize", {"messages": messages})
    usage = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1).usage
    assert usage is not None
    assert answer["count"] == usage.prompt_tokens
    for wrong in ({}, {"messages": messages, "prompt": "x"}, {"tokens": [1]}):
        status, refused = await server.ask("POST", "/tokenize", wrong)
        assert (status, refused["error"]["type"]) == (400, "invalid_request_error")
    status, refused = await server.ask("POST", "/detokenize", {"tokens": ["a"]})
    assert (status, refused["error"]["param"]) == (400, "tokens")


# --- What clients probe --------------------------------------------------------------------------
async def test_health_and_version_need_no_key(server: RunningServer) -> None:
    status, health = await server.ask("GET", "/health", key="none")
    assert (status, health["missing"]) == (200, [])
    status, version = await server.ask("GET", "/version", key="none")
    assert status == 200
    assert version["version"][0].isdigit()
