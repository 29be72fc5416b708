"""A tool server for tests: `python tool_server.py`, MCP over stdio, without the library.

Its tools do what a test wants of a server: answer, wait, fail, say too much, or die. What it was
asked goes to the file CALLS of its environment, a line a message.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = ["echo", "sleep", "wait", "fail", "large", "endless", "die", "garbage", "picture",
         "structured", "refuse", "grow", "schemed"]  # fmt: skip
# No machine decides it for "aaa...!": each a more doubles the time.
ENDLESS = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
extra: list[str] = []
lock = threading.Lock()


def say(message: dict[str, Any]) -> None:
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def note(text: str) -> None:
    if path := os.environ.get("CALLS"):
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - it starts faster so
            file.write(text + "\n")


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], **more}


def call(number: int, name: str, given: dict[str, Any]) -> None:
    note(f"call {name}")
    if name == "echo":
        result = text(json.dumps(given, sort_keys=True))
    elif name == "sleep":
        time.sleep(given["seconds"])
        result = text("awake")
    elif name == "wait":
        while not os.path.exists(given["path"]):  # noqa: PTH110 - it starts faster so
            time.sleep(0.01)
        result = text("it is there")
    elif name == "fail":
        result = text("it did not work", isError=True)
    elif name == "large":
        result = text("x" * given["bytes"])
    elif name == "endless":
        while True:
            sys.stdout.write("x" * 65_536)
    elif name == "die":
        os._exit(3)
    elif name == "garbage":
        sys.stdout.write("this is no JSON\n")
        result = text("said it")
    elif name == "picture":
        picture = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        result = {"content": [{"type": "text", "text": "see"}, picture]}
    elif name == "structured":
        result = {"content": [], "structuredContent": {"a": 1}}
    elif name == "schemed":
        result = {"content": [], "structuredContent": {"a": "a" * 20 + "!"}}
    elif name == "grow":
        extra.append("grown")
        say({"method": "notifications/tools/list_changed"})
        result = text("grown")
    else:
        say({"id": number, "error": {"code": -32000, "message": "no such thing"}})
        return
    say({"id": number, "result": result})


def page(cursor: str | None) -> dict[str, Any]:
    """Tools; with PAGES in the environment also pages without end, a tool of so many bytes each."""
    listed = [{"name": n, "description": f"does {n}", "inputSchema": SCHEMA}
              for n in TOOLS + extra]  # fmt: skip
    listed[TOOLS.index("schemed")]["outputSchema"] = ENDLESS
    size = int(os.environ.get("PAGES", "0"))
    if not size:
        return {"tools": listed}
    note("page")
    number = int(cursor or 0)
    names = [f"more{number}", "a\nb", "x" * 300]
    more = [{"name": n, "description": "y" * size, "inputSchema": SCHEMA} for n in names]
    return {"tools": more if cursor else listed, "nextCursor": str(number + 1)}


def start_call(number: int, name: str, given: dict[str, Any]) -> None:
    threading.Thread(target=call, args=(number, name, given), daemon=True).start()


def serve(
    name: str,
    listing: Callable[[int, str | None], None],
    calling: Callable[[int, str, dict[str, Any]], None],
) -> None:
    """Answer requests until there are no more; the two answer for tools' lists and calls."""
    for line in sys.stdin:
        message = json.loads(line)
        method, number, given = message.get("method"), message.get("id"), message.get("params", {})
        if number is None or method is None:
            note(str(method))
        elif method == "initialize":
            about = {"protocolVersion": given["protocolVersion"],
                     "capabilities": {"tools": {"listChanged": True}},
                     "serverInfo": {"name": name, "version": "1"}}  # fmt: skip
            say({"id": number, "result": about})
        elif method == "tools/list":
            listing(number, given.get("cursor"))
        elif method == "tools/call":
            if parent := given.get("_meta", {}).get("traceparent"):
                note(f"traceparent {parent}")
            calling(number, given["name"], given.get("arguments", {}))
        else:
            say({"id": number, "error": {"code": -32601, "message": "unknown"}})


if __name__ == "__main__":
    note("start")
    serve("test", lambda number, cursor: say({"id": number, "result": page(cursor)}), start_call)
