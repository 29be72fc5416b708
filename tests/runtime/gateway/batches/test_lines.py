"""Lines of input files: split and checked, within bounds for any file."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_kernel.protocol.limits import (
    BATCH_ERRORS_MAX,
    BATCH_LINE_BYTES_MAX,
    BATCH_LINES_MAX,
)
from symphony_runtime.gateway.batches.lines import Splitter, Validator, parse_line

from tests.support.gateway.batches import COMPLETIONS, jsonl, line_of

RESPONSES = "/v1/responses"


def checked(*pieces: bytes) -> Validator:
    validator = Validator(COMPLETIONS)
    for piece in pieces:
        validator.feed(piece)
        if validator.ended:
            break
    validator.finish()
    return validator


def codes(validator: Validator) -> list[tuple[str, int | None]]:
    return [(error["code"], error["line"]) for error in validator.errors]


@given(st.lists(st.sampled_from([b"a", b"\n", b"bc", b"\n\n"]), max_size=40))
def test_splitter_yields_the_same_lines_for_any_pieces(pieces: list[bytes]) -> None:
    whole, splitter = b"".join(pieces), Splitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)] + list(splitter.finish())
    wanted = whole.split(b"\n")
    assert [line.data for line in lines] == (wanted if wanted[-1] else wanted[:-1])
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        assert whole[line.start : line.end].rstrip(b"\n") == (line.data or b"")


def test_splitter_resumed_at_a_line_yields_the_rest() -> None:
    whole = b"one\n\ntwo\nthree"
    lines = [*(splitter := Splitter()).feed(whole), *splitter.finish()]
    third = lines[2]
    rest = Splitter(third.number, third.start)
    assert [*rest.feed(whole[third.start :]), *rest.finish()] == lines[2:]


def test_splitter_holds_no_more_than_one_line_of_a_huge_one() -> None:
    splitter, piece, held = Splitter(), b"x" * (64 << 10), 0
    for _ in range(4 * BATCH_LINE_BYTES_MAX // len(piece)):
        assert list(splitter.feed(piece)) == []
        held = max(held, len(splitter._pending))
    assert held <= BATCH_LINE_BYTES_MAX
    (line, after) = splitter.feed(b"\nnext\n")
    assert (line.data, line.end) == (None, 4 * BATCH_LINE_BYTES_MAX + 1)
    assert (after.data, after.number) == (b"next", 2)


def test_validator_of_good_lines_counts_them() -> None:
    data = jsonl([line_of("a"), line_of("b")])
    validator = checked(b"\xef\xbb\xbf" + data[:-1])  # a BOM first, and no newline at the end
    assert (validator.errors, validator.total) == ([], 2)
    assert checked(data.replace(b"\n", b"\r\n\r\n")).total == 2


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{", "invalid_json_line"),
        ('{"custom_id": NaN}', "invalid_json_line"),
        ("[" * 5_000, "invalid_json_line"),
        ("[]", "invalid_json_line"),
        ("\ud800", "invalid_json_line"),
        (json.dumps(line_of("\ud800")), "invalid_json_line"),
        (json.dumps(line_of("a", {"prompt": "\ud800"})), "invalid_json_line"),
        (json.dumps({**line_of("a"), "custom_id": 1}), "invalid_custom_id"),
        (json.dumps(line_of("")), "invalid_custom_id"),
        (json.dumps(line_of("x" * 513)), "invalid_custom_id"),
        (json.dumps(line_of("a", method="GET")), "invalid_method"),
        (json.dumps(line_of("a", url="/v1/embeddings")), "invalid_url"),
        (json.dumps({**line_of("a"), "body": []}), "invalid_body"),
        (json.dumps(line_of("a", {"stream": True})), "invalid_body"),
        (json.dumps(line_of("first")), "duplicate_custom_id"),
        ("x" * (BATCH_LINE_BYTES_MAX + 1), "line_too_long"),
        ("[" + "0," * (BATCH_LINE_BYTES_MAX // 4) + "0]", "invalid_json_line"),
        ("[" + "[],[]," * 150_000 + "0]", "line_too_long"),
    ],
)
def test_validator_names_what_is_wrong_with_its_line(line: str, code: str) -> None:
    data = jsonl([line_of("first")]) + b"\n" + line.encode("utf-8", "surrogatepass") + b"\n"
    assert codes(checked(data)) == [(code, 3)]


def test_validator_refuses_a_line_that_runs_in_the_background() -> None:
    validator = Validator(RESPONSES)
    body = {"input": "a", "background": True}
    validator.feed(jsonl([line_of("a", body, url=RESPONSES), line_of("b", url=RESPONSES)]))
    (error,) = validator.errors
    assert (error["code"], error["line"]) == ("invalid_body", 1)
    assert "`background` must be false" in error["message"]


def test_validator_shows_a_bounded_number_of_errors() -> None:
    validator = checked(b"{\n" * 10_000)
    assert len(validator.errors) == BATCH_ERRORS_MAX
    assert validator.ended
    assert len(json.dumps(validator.errors)) < 50_000


@pytest.mark.parametrize("data", [b"", b"\n", b" \n\t\n"])
def test_validator_of_a_file_without_requests_says_so(data: bytes) -> None:
    assert codes(checked(data)) == [("empty_file", None)]


def test_validator_of_a_million_empty_lines_looks_at_the_first_ones() -> None:
    began = time.process_time()
    validator = checked(*[b"\n" * (64 << 10)] * 16)
    assert codes(validator) == [("too_many_lines", BATCH_LINES_MAX + 1)]
    assert time.process_time() - began < 2


def test_validator_of_too_many_requests_reads_no_further() -> None:
    def pieces() -> Any:
        for number in range(BATCH_LINES_MAX + 1_000):
            yield jsonl([line_of(str(number))])

    validator = checked(*pieces())
    assert codes(validator) == [("too_many_lines", BATCH_LINES_MAX + 1)]
    assert validator.total == BATCH_LINES_MAX


def test_parsed_line_has_the_body_as_json() -> None:
    (line,) = Splitter().feed(jsonl([line_of("é", {"prompt": "ü\n"})]))
    request = parse_line(line, COMPLETIONS)
    assert request.custom_id == "é"
    assert json.loads(request.body)["prompt"] == "ü\n"
    assert b"\n" not in request.body
