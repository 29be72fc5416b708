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
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def message(**fields: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", **fields})


def result(number: Any, body: str) -> str:
    """Return an answer whose result is this JSON text, valid or not."""
    return f'{{"jsonrpc": "2.0", "id": {json.dumps(number)}, "result": {body}}}'


def structured(body: str) -> str:
    return f'{{"content": [], "structuredContent": {{"a": {body}}}}}'


def flood(number: int) -> None:
    """Return unrequested requests and notifications, then the answer."""
    for n in range(60):
        for method in ("sampling/createMessage", "roots/list", "elicitation/create", "ping", "x"):
            say(message(id=f"mine-{n}-{method}", method=method, params={}))
        for method in ("notifications/progress", "notifications/message", "notifications/x"):
            say(message(method=method, params={"progressToken": number, "progress": n,
                                               "level": "info", "data": "x" * 100}))  # fmt: skip
    say(result(number, json.dumps(text("flooded"))))


def call(number: int, name: str) -> None:
    good = json.dumps(text(name))
    if name == "wrong_ids":
        for other in (number + 1_000, -number, f"{number}x", None, 1.5, [number], {"id": 1}):
            say(result(other, good))
    elif name == "twice":
        say(result(number, good))
        say(result(number, json.dumps(text("the second answer"))))
    elif name == "deep":
        say(result(number, structured("[" * DEEP + "]" * DEEP)))
    elif name == "half":
        say(result(number, '{"content": [{"type": "text", "text": "\\ud800"}]}'))
    elif name == "infinite":
        say(result(number, structured("1e999")))
    elif name == "digits":
        say(result(number, structured("9" * 10_000)))
    elif name == "not_json":
        say(result(number, structured("NaN")))
    elif name == "bytes":
        sys.stdout.buffer.write(b'{"jsonrpc": "2.0", "id": %d, "result": "\xff\xfe"}\n' % number)
        sys.stdout.buffer.flush()
    elif name == "nul":
        say(result(number, json.dumps(text("a\0b\x1b[2J"))))
    elif name == "both":
        say(message(id=number, result=text("both"), error={"code": 1, "message": "both"}))
    elif name == "list":
        say(result(number, "[1, 2, 3]"))
    elif name == "nothing":
        say(result(number, "null"))
    elif name == "kinds":
        say(result(number, '{"content": [{"type": "x"}, 5, null], "isError": "perhaps"}'))
    elif name == "many":
        block = '{"type": "text", "text": ""}'
        say(result(number, f'{{"content": [{", ".join([block] * 5_000)}]}}'))
    elif name == "links":
        link = '{"type": "resource_link", "name": "x", "uri": "file:///etc/passwd"}'
        say(result(number, f'{{"content": [{link}]}}'))
    elif name == "error":
        say(message(id=number, error={"code": "x", "message": ["y"] * 10, "data": "z" * 100_000}))
    elif name == "flood":
        flood(number)
    elif name == "honest":
        say(result(number, good))
    # "never": no answer at all


TOOLS = ["honest", "wrong_ids", "twice", "deep", "half", "infinite", "digits", "not_json", "bytes",
         "nul", "both", "list", "nothing", "kinds", "many", "links", "error", "flood",
         "never"]  # fmt: skip


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
