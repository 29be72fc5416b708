"""Batches with OpenAI's own client against a real server, which is killed in between."""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from tests.support.gateway.openai_client import MODEL, connect
from tests.support.server.deaths import kill_role
from tests.support.server.server import RunningServer, running_server

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with connect(server) as client:
        yield client


def line_of(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": MODEL, **body}}


def completions(count: int, tokens: int = 8) -> list[dict[str, Any]]:
    return [
        line_of(f"c{number}", COMPLETIONS, prompt=f"def f{number}(x):", max_tokens=tokens,
                temperature=0, ignore_eos=True)
        for number in range(count)
    ]  # fmt: skip


def begin(client: openai.OpenAI, lines: list[dict[str, Any]], endpoint: Any) -> Batch:
    data = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("input.jsonl", data), purpose="batch")
    assert (file.bytes, file.purpose, file.filename) == (len(data), "batch", "input.jsonl")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"a": "b"}
    )


def wait(client: openai.OpenAI, batch: Batch, seconds: float = 120) -> Batch:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch.id)
        if batch.status in ENDED:
            return batch
        time.sleep(0.05)
    raise AssertionError(f"not ended: {batch}")


def lines_of(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """Return the lines of a result file by custom id; there is one of each."""
    assert file_id is not None
    found = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    by_id = {line["custom_id"]: line for line in found}
    assert len(by_id) == len(found)
    return by_id


def some_done(client: openai.OpenAI, batch: Batch, count: int) -> int:
    """Wait until so many lines have results; return how many."""
    while True:
        counts = client.batches.retrieve(batch.id).request_counts
        assert counts is not None
        if counts.completed >= count:
            return counts.completed
        time.sleep(0.01)


def test_chat_batch_answers_as_the_route(client: openai.OpenAI) -> None:
    asked = [{"role": "user", "content": f"read file {number}"} for number in range(6)]
    fields: Any = {"max_tokens": 8, "temperature": 0}
    lines = [line_of(f"m{n}", CHAT, messages=[m], **fields) for n, m in enumerate(asked)]
    lines.append(line_of("wrong", CHAT, messages=[], n=0))
    batch = wait(client, begin(client, lines, CHAT))
    assert (batch.status, batch.metadata) == ("completed", {"a": "b"})
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 7, "completed": 6, "failed": 1}
    output = lines_of(client, batch.output_file_id)
    for number, message in enumerate(asked):
        whole: Any = client.chat.completions.create(model=MODEL, messages=[message], **fields)  # type: ignore[list-item]
        found = output[f"m{number}"]["response"]["body"]
        assert found["choices"] == whole.to_dict()["choices"]
    wrong = lines_of(client, batch.error_file_id)["wrong"]["response"]
    assert (wrong["status_code"], wrong["body"]["error"]["param"]) == (400, "n")
    assert batch in list(client.batches.list(limit=2))
    names = [file.filename for file in client.files.list(purpose="batch_output")]
    assert f"{batch.id}_output.jsonl" in names


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (EMBEDDINGS, {"input": ["a text", "another"]}),
        ("/v1/responses", {"input": "read a file", "max_output_tokens": 4}),
        ("/v1/rerank", {"query": "files", "documents": ["a", "b"]}),
        ("/v1/score", {"text_1": "a", "text_2": ["b"]}),
    ],
)
def test_batch_of_other_endpoints_completes(
    client: openai.OpenAI, endpoint: str, body: dict[str, Any]
) -> None:
    batch = wait(client, begin(client, [line_of("a", endpoint, **body)], endpoint))
    assert batch.error_file_id is None, lines_of(client, batch.error_file_id)
    answer = lines_of(client, batch.output_file_id)["a"]["response"]
    assert answer["status_code"] == 200
    if endpoint == EMBEDDINGS:
        whole = client.embeddings.create(model=MODEL, **body, encoding_format="float")
        assert answer["body"]["data"] == whole.to_dict()["data"]


def test_batch_with_wrong_lines_fails_with_their_numbers(client: openai.OpenAI) -> None:
    good = completions(1)[0]
    lines = [good, good, {**good, "custom_id": "b", "url": CHAT}]
    batch = wait(client, begin(client, lines, COMPLETIONS))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    found = [(error.code, error.line) for error in batch.errors.data]
    assert found == [("duplicate_custom_id", 2), ("invalid_url", 3)]


def test_batch_of_no_such_file_or_endpoint_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="there is no file"):
        client.batches.create(
            input_file_id="file-1", endpoint="/v1/completions", completion_window="24h"
        )
    data = client.files.create(file=("a", b"x"), purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="no file with purpose batch"):
        client.batches.create(
            input_file_id=data.id, endpoint="/v1/completions", completion_window="24h"
        )
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        client.batches.create(
            input_file_id=data.id, endpoint="/v1/moderations", completion_window="24h"
        )
    assert client.files.delete(data.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(data.id)


def test_cancelled_batch_ends_soon(client: openai.OpenAI) -> None:
    batch = begin(client, completions(500, 64), COMPLETIONS)
    some_done(client, batch, 1)
    assert client.batches.cancel(batch.id).status == "cancelling"
    began = time.monotonic()
    batch = wait(client, batch)
    assert batch.status == "cancelled"
    assert time.monotonic() - began < 10
    assert batch.request_counts is not None
    assert len(lines_of(client, batch.output_file_id)) == batch.request_counts.completed


def test_batches_and_files_of_another_tenant_are_not_found(
    server: RunningServer, client: openai.OpenAI
) -> None:
    batch = wait(client, begin(client, completions(1), COMPLETIONS))
    key = asyncio.run(server.add_tenant("other-batches"))
    with connect(server, key) as other:
        for asked in (
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.files.retrieve(batch.input_file_id),
            lambda: other.files.content(batch.output_file_id or ""),
            lambda: other.files.delete(batch.input_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                asked()
        assert list(other.batches.list()) == []
        assert list(other.files.list()) == []
        with pytest.raises(openai.BadRequestError, match="no file"):
            other.batches.create(
                input_file_id=batch.input_file_id,
                endpoint="/v1/completions",
                completion_window="24h",
            )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", ["gateway", "kernel"])
def test_batch_has_each_result_once_after_kills(tmp_path: Path, role: str) -> None:
    """kill -9 three times; greedy answers are those of the route."""
    count = 60
    with running_server(tmp_path, executor="torch") as server, connect(server) as client:
        lines = completions(count, 24)
        batch = begin(client, lines, COMPLETIONS)
        done = 0
        for number in range(3):
            done = some_done(client, batch, max(done, (number + 1) * count // 6))
            asyncio.run(kill_role(server, role))
        batch = wait(client, batch)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": count, "completed": count, "failed": 0}
        output = lines_of(client, batch.output_file_id)
        assert set(output) == {line["custom_id"] for line in lines}
        for line in lines[::7]:
            body: Any = line["body"]
            asked = client.post(COMPLETIONS.removeprefix("/v1"), body=body, cast_to=object)
            found = output[line["custom_id"]]["response"]["body"]
            assert found["choices"] == asked["choices"]  # type: ignore[index]


def first_token_seconds(client: openai.OpenAI) -> float:
    began = time.monotonic()
    stream = client.completions.create(
        model=MODEL, prompt="import os\n", max_tokens=4, temperature=0, stream=True
    )
    for _ in stream:
        stream.close()
        return time.monotonic() - began
    raise AssertionError("no token came")


@pytest.mark.slow
@pytest.mark.timing
def test_interactive_request_next_to_a_batch_keeps_its_time_to_first_token(
    client: openai.OpenAI,
) -> None:
    """The median of 20 stays below half a second; alone it takes some 20 ms."""
    for _ in range(3):
        batch = begin(client, completions(1_000, 64), COMPLETIONS)
        some_done(client, batch, 1)
        found = [first_token_seconds(client) for _ in range(20)]
        assert client.batches.retrieve(batch.id).status == "in_progress"
        client.batches.cancel(batch.id)
        wait(client, batch)
        alone = [first_token_seconds(client) for _ in range(20)]
        print(f"next to a batch {statistics.median(found):.3f} s, alone "
              f"{statistics.median(alone):.3f} s")  # fmt: skip
        if statistics.median(found) < 0.5:
            return
    raise AssertionError(found)
