"""A tool server that lies, by MCP over stdio, without the library.

Each of its tools is a way to answer wrongly; LIST in its environment is a way to list them.
"""

import json
import os
import sys
from typing import Any

from tests.support.gateway.tool_server import serve, text

SCHEMA = {"type": "object"}
DEEP = 20_000


def say(text: str) -> None:
    sys.stdout.buffer.write(text.encode(errors="surrogateescape") + b"\n")
    sys.stdout.buffer.flush()


def message(**fields: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", **fields})


def result(number: Any, body: str) -> str:
    """Return an answer whose result is this JSON text, valid or not."""
    return f'{{"jsonrpc": "2.0", "id": {json.dumps(number)}, "result": {body}}}'


def structured(body: str) -> str:
    return f'{{"content": [], "structuredContent": {{"a": {body}}}}}'


def unasked(number: int) -> list[str]:
    """Return requests and notifications that belong to no request of the client."""
    methods = ("sampling/createMessage", "roots/list", "elicitation/create", "ping", "x")
    notices = ("notifications/progress", "notifications/message", "notifications/x")
    said = {"progressToken": number, "level": "info", "data": "x" * 100}
    return [
        line
        for n in range(60)
        for line in (
            *(message(id=f"mine-{n}-{each}", method=each, params={}) for each in methods),
            *(message(method=each, params={**said, "progress": n}) for each in notices),
        )
    ]


BLOCK = '{"type": "text", "text": ""}'
LINK = '{"type": "resource_link", "name": "x", "uri": "file:///etc/passwd"}'
# The result, as JSON text or none, of each tool that gives one answer.
RESULTS = {
    "honest": json.dumps(text("honest")),
    "deep": structured("[" * DEEP + "]" * DEEP),
    "half": '{"content": [{"type": "text", "text": "\\ud800"}]}',
    "infinite": structured("1e999"),
    "digits": structured("9" * 10_000),
    "not_json": structured("NaN"),
    "bytes": '"\udcff\udcfe"',  # no UTF-8
    "nul": json.dumps(text("a\0b\x1b[2J")),
    "list": "[1, 2, 3]",
    "nothing": "null",
    "kinds": '{"content": [{"type": "x"}, 5, null], "isError": "perhaps"}',
    "many": f'{{"content": [{", ".join([BLOCK] * 5_000)}]}}',
    "links": f'{{"content": [{LINK}]}}',
}
TOOLS = [*RESULTS, "wrong_ids", "twice", "both", "error", "flood", "never"]


def call(number: int, name: str) -> None:
    if name in RESULTS:
        say(result(number, RESULTS[name]))
    elif name == "wrong_ids":
        for other in (number + 1_000, -number, f"{number}x", None, 1.5, [number], {"id": 1}):
            say(result(other, json.dumps(text(name))))
    elif name == "twice":
        say(result(number, json.dumps(text(name))))
        say(result(number, json.dumps(text("the second answer"))))
    elif name == "both":
        say(message(id=number, result=text("both"), error={"code": 1, "message": "both"}))
    elif name == "error":
        say(message(id=number, error={"code": "x", "message": ["y"] * 10, "data": "z" * 100_000}))
    elif name == "flood":
        for each in unasked(number):
            say(each)
        say(result(number, json.dumps(text("flooded"))))
    # "never": no answer at all


def listing(number: Any, cursor: str | None) -> None:
    how = os.environ.get("LIST", "")
    tools: list[Any] = [{"name": n, "description": n, "inputSchema": SCHEMA} for n in TOOLS]
    if how == "circle":  # every page is the first one
        say(result(number, json.dumps({"tools": tools, "nextCursor": "again"})))
        return
    if how == "names":
        odd = ["", "a.b", "../up", "honest", "x" * 5_000, "a\u202eb", "a b", "*"]
        tools += [{"name": n, "inputSchema": SCHEMA} for n in odd]
    elif how == "schemas":
        deep: Any = {}
        for _ in range(100):
            deep = {"not": deep}
        odd_schemas = [deep, {"maximum": 10**30}, {"$ref": "#"}, {"$ref": "file:///etc/passwd"},
                       {"pattern": "(a+)+$"}]  # fmt: skip
        tools += [
            {"name": f"s{n}", "inputSchema": {**s, **SCHEMA}} for n, s in enumerate(odd_schemas)
        ]
    say(result(number, json.dumps({"tools": tools})))


if __name__ == "__main__":
    serve("liar", listing, lambda number, name, _given: call(number, name))
