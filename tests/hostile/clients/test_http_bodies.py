"""Bodies and targets that are well-formed HTTP, and hostile all the same."""

import asyncio
import json
from urllib.parse import quote

import pytest
from symphony_kernel.protocol.limits import JSON_DEPTH_MAX

from tests.hostile.clients.wire import ask, head, post
from tests.support.server.server import RunningServer

RUNS = "/v1/programs/parrot/runs?detach=1"
DEEP = 100_000
NEARLY_TOO_DEEP = (JSON_DEPTH_MAX, 900, 960, 972, 985)  # for what reads or writes them
# Bodies of a request for a run. None of them starts one.
NO_RUN: dict[str, bytes] = {
    "lists in lists": b'{"input": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "objects in objects": b'{"input": ' + b'{"a":' * (DEEP // 5) + b"1" + b"}" * (DEEP // 5) + b"}",
    "lists that never end": b"[" * DEEP,
    **{
        f"{depth} lists in lists": b'{"input": ' + b"[" * depth + b"]" * depth + b"}"
        for depth in NEARLY_TOO_DEEP
    },
    "NaN": b'{"input": NaN}',
    "infinity": b'{"input": -Infinity}',
    "a number past every float": b'{"input": [1e999]}',
    "an integer of 100,000 digits": b'{"input": ' + b"9" * 100_000 + b"}",
    "bytes that are no UTF-8": b'{"input": "\xff\xfe"}',
    "overlong UTF-8": b'{"input": "\xc0\xae\xc0\xae"}',
    "half a character": b'{"input": "\\ud800"}',
    "half a character as a key": b'{"input": {"\\ud800": 1}}',
    "half a character as a field": b'{"\\ud800": 1}',
    "two documents": b"{} {}",
    "a document that is cut off": b'{"input": "',
    "a list": b"[]",
    "null": b"null",
    "a NUL behind it": b"{}\0",
    "a control character": b'{"input": "\x01"}',
    "a comment": b'{"input": 1 /* one */}',
    "single quotes": b"{'input': 1}",
    "a limit of 1e999": b'{"limits": {"wall_ms": 1e999}}',
    "a limit past 64 bits": b'{"limits": {"wall_ms": 18446744073709551616}}',
    "a priority of -0.0": b'{"priority": -0.0}',
    "many unknown fields": b"{" + b",".join(b'"%d":1' % n for n in range(25_000)) + b"}",
}
# The same for a completion: what is refused is told in OpenAI's shape.
NO_ANSWER: dict[str, bytes] = {
    "lists in lists": b'{"model": "M", "prompt": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "a deep schema": b'{"model": "M", "prompt": "x", "guided_json": '
    + b'{"not":' * 900 + b"{}" + b"}" * 900 + b"}",
    "a schema too deep to write": b'{"model": "M", "prompt": "x", "guided_json": '
    + b'{"not":' * 985 + b"{}" + b"}" * 985 + b"}",
    "a temperature of 1e999": b'{"model": "M", "prompt": "x", "temperature": 1e999}',
    "NaN": b'{"model": "M", "prompt": "x", "top_p": NaN}',
    "a seed past 64 bits": b'{"model": "M", "prompt": "x", "seed": 1e300}',
    "a bias past every float": b'{"model": "M", "prompt": "x", "logit_bias": {"1": 1e999}}',
    "a token past 64 bits": b'{"model": "M", "prompt": [18446744073709551616]}',
    "a token of 4,000 digits": b'{"model": "M", "prompt": [' + b"9" * 4_000 + b"]}",
    "tokens that are true": b'{"model": "M", "prompt": [true, false]}',
    "an answer of 10^18 tokens": b'{"model": "M", "prompt": "x", "max_tokens": 1e18}',
    "10^9 answers": b'{"model": "M", "prompt": "x", "n": 1000000000}',
    "100,000 prompts": b'{"model": "M", "prompt": [' + b",".join([b'"x"'] * 100_000) + b"]}",
    "half a character": b'{"model": "M", "prompt": "\\ud800"}',
    "a model that is half a character": b'{"model": "\\udfff", "prompt": "x"}',
    "a model that is a list": b'{"model": [], "prompt": "x"}',
    "an expression that explodes": b'{"model": "M", "prompt": "x", "guided_regex": "'
    + b"(" * 100 + b"a{1000}" + b"){1000}" * 100 + b'"}',
}  # fmt: skip


@pytest.mark.parametrize("name", NO_RUN)
def test_invalid_run_body_starts_no_run(target: RunningServer, name: str) -> None:
    reply = asyncio.run(ask(target.url, post(RUNS, target.key, NO_RUN[name])))
    assert reply.status == 400, reply
    assert reply.headers["content-type"].startswith("application/problem+json")
    assert reply.json()["status"] == 400
    assert len(reply.body) < 4 * len(NO_RUN[name]) + 4_096


@pytest.mark.parametrize("name", NO_ANSWER)
async def test_invalid_openai_body_gets_an_error(target: RunningServer, name: str) -> None:
    models = await ask(target.url, head("GET /v1/models HTTP/1.1", target.key))
    model = models.json()["data"][0]["id"].encode()
    body = NO_ANSWER[name].replace(b'"M"', b'"%s"' % model)
    reply = await ask(target.url, post("/v1/completions", target.key, body))
    assert reply.status in (400, 404), reply
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


# Some megabytes of JSON, each of which would be half a gigabyte of values.
TOO_MANY: dict[str, bytes] = {
    "lists": b'{"input": [' + b"[]," * 2_700_000 + b"[]]}",
    "fields": b"{" + b",".join(b'"%d":1' % n for n in range(100_000)) + b"}",
    "objects in objects": b'{"input": ' + b'{"a":' * DEEP + b"1" + b"}" * (DEEP + 1),
    "prompts": b'{"model": "m", "prompt": [' + b"{}," * 2_000_000 + b"{}]}",
}


@pytest.mark.parametrize("name", TOO_MANY)
async def test_body_with_too_many_values_is_refused(target: RunningServer, name: str) -> None:
    path = "/v1/completions" if name == "prompts" else RUNS
    reply = await ask(target.url, post(path, target.key, TOO_MANY[name]))
    assert reply.status == 413, reply
    assert b"too many values" in reply.body


async def test_body_with_a_repeated_key_uses_the_last_value(target: RunningServer) -> None:
    """A field that stands there twice: one reader decides, and the program gets what it read."""
    body = b'{"input": {"a": 1, "a": 2}, "input": {"b": 3, "b": 4}}'
    reply = await ask(target.url, post(RUNS, target.key, body))
    assert reply.status == 202, reply
    async with target.client() as client:
        await client.runs.cancel(reply.json()["id"])


# Targets: none of them is anything of the tenant's, or leads anywhere else.
TARGETS: dict[str, str] = {
    "a folder above": "/v1/programs/../../etc/passwd",
    "an encoded folder above": "/v1/programs/..%2f..%2fetc%2fpasswd",
    "one that is encoded twice": "/v1/programs/%252e%252e%252fetc",
    "overlong dots": "/v1/programs/%c0%ae%c0%ae%c0%af",
    "backslashes": "/v1/programs/..%5c..%5cwindows",
    "a NUL": "/v1/programs/parrot%00.wasm",
    "a NUL in a run": "/v1/runs/run_%00",
    "a line break": "/v1/runs/run_%0d%0aX-Evil:%201",
    "bytes that are no UTF-8": "/v1/runs/\xff\xfe",
    "encoded bytes that are no UTF-8": "/v1/runs/%ff%fe",
    "half a character": "/v1/runs/%ed%a0%80",
    "percent and nothing": "/v1/runs/%",
    "percent and nonsense": "/v1/runs/%zz%u0041",
    "SQL": "/v1/runs/'%20OR%201=1%20--",
    "a pattern of SQL": "/v1/runs/run_%25",
    "a script": "/v1/programs/%3Cscript%3Ealert(1)%3C/script%3E",
    "a template": "/v1/programs/%7B%7B7*7%7D%7D",
    "a run of 4,000 letters": "/v1/runs/" + "x" * 4_000,
    "a file above": "/v1/kv/../../etc/passwd",
    "an encoded file above": "/v1/kv/..%2f..%2fetc%2fpasswd",
    "another tenant's tree": "/v1/kv/public/default/../../secret",
    "an empty segment": "/v1/kv/a//b",
    "a file with a NUL": "/v1/kv/a%00b",
    "a file of bytes": "/v1/kv/\xff\xfe",
    "a file of encoded bytes": "/v1/kv/%ff",
    "a prefix of bytes": "/v1/kv?prefix=\xff",
    "a cursor of bytes": "/v1/kv?after=\xff",
    "a cursor of half a character": "/v1/programs?after=1.\xed\xa0\x80",
    "runs after bytes": "/v1/runs?after=\xff",
    "a limit of other digits": "/v1/runs?limit=%D9%A3",
    "a limit of 5,000 digits": "/v1/runs?limit=" + "9" * 5_000,
    "a path of slashes": "//v1//runs",
    "a path of dots": "/./v1/./runs/../../..",
    "a semicolon": "/v1/runs;limit=1",
    "a fragment": "/v1/runs/x#/../../admin",
    "a model of bytes": "/v1/models/\xff",
    "a trace of no run": "/v1/runs/%2e%2e/trace",
}


@pytest.mark.parametrize("name", TARGETS)
def test_odd_request_target_is_not_found(target: RunningServer, name: str) -> None:
    reply = asyncio.run(ask(target.url, head(f"GET {TARGETS[name]} HTTP/1.1", target.key)))
    shown = reply.status == 200 and reply.json().get("data") == []  # an empty listing
    assert shown or reply.status in (400, 404), reply
    assert "x-evil" not in reply.headers
    assert b"root:" not in reply.body
    if reply.status >= 400:
        assert reply.headers["content-type"] in ("application/problem+json", "application/json")
        json.loads(reply.body.decode("ascii"))  # what it repeats is escaped


QUERIES = {
    "a thousand": "&".join(f"a{n}=1" for n in range(1_000)), "nothing": "&" * 7_000,
    "twice": "limit=1&limit=2", "semicolons": "live=1;live=0", "percent": "%", "equals": "=",
    "no value": "limit",
}  # fmt: skip


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_odd_query_is_answered(target: RunningServer, query: str) -> None:
    reply = asyncio.run(ask(target.url, head(f"GET /v1/runs?{query} HTTP/1.1", target.key)))
    assert reply.status in (200, 400), reply


NAMES = ["../up", "a/b", "..", ".", ".hidden", "a\0b", "a b", "é", "sha256:00", "x" * 129, "a%2fb",
         "", "-", "con\n", "parrot;rm"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_program_name_is_never_a_path(target: RunningServer, name: str) -> None:
    request = post(f"/v1/programs?name={quote(name, safe='')}", target.key, b"\0asm")
    reply = asyncio.run(ask(target.url, request))
    assert reply.status == 400, reply
    assert reply.json()["type"].endswith(":bad-name")


# Names of KV files that would leave the tenant's folder on disk.
KV_NAMES = {
    "above": "..%2f..%2fadmin.key", "above, bare": "../../admin.key", "absolute": "%2f%2fetc",
    "a NUL": "a%00", "dots": "a/../../b", "public": "public/default/x",
    "another's": "public/nobody/x", "too long": "x" * 2_000, "long for a disk": "y" * 300,
}  # fmt: skip


@pytest.mark.parametrize("name", KV_NAMES)
def test_kv_file_name_is_never_a_path(target: RunningServer, name: str) -> None:
    """What would be written elsewhere is refused before it is read; so is what is no KV file."""
    path, body = KV_NAMES[name], b"\x08\0\0\0\0\0\0\0{}      "
    request = head(f"PUT /v1/kv/{path} HTTP/1.1", target.key, f"Content-Length: {len(body)}")
    reply = asyncio.run(ask(target.url, request + body))
    assert reply.status in (400, 403, 409), reply  # 409: it is no file of this model
    found = {each.name for each in target.data_dir.parent.rglob("*") if each.is_file()}
    assert not {"etc", "b"} & found
