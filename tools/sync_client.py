"""The synchronous client, from the asynchronous one: `python -m tools.sync_client`.

It writes client/symphony/client/sync_client.py. Each class of the asynchronous client becomes one
with the same methods, parameters and words, whose methods go through a `Portal`:

| asynchronous | synchronous |
| --- | --- |
| a coroutine | a method that returns when it is done |
| an asynchronous iterator | an iterator; of bytes, a file |
| an asynchronous context manager | a context manager |
"""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "client/symphony/client"
PAGE = FOLDER / "sync_client.py"
# The modules and their classes; how a class reaches its asynchronous one.
CLASSES = {
    "programs": ("AsyncPrograms", "client.programs"),
    "websocket": ("AsyncWebSocket", "self._socket"),
    "runs": ("AsyncRuns", "client.runs"),
    "kv": ("AsyncKv", "client.kv"),
    "adapters": ("AsyncAdapters", "client.adapters"),
    "secrets": ("AsyncSecrets", "client.secrets"),
    "admin": ("AsyncAdmin", "client.admin"),
    "async_client": ("AsyncClient", "client"),
}
_HEAD = '''"""The synchronous client. Made by `python -m tools.sync_client` of the asynchronous one.

Do not edit it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, BinaryIO, Unpack

from symphony.client.async_client import AsyncClient
from symphony.client.events import Event
from symphony.client.places import find_server
from symphony.client.portal import Portal
from symphony.client.programs import Versions
from symphony.client.refusals import ANSWER_BYTES_MAX
from symphony.client.retries import RETRIES_DEFAULT
from symphony.client.runs import Children, RunList, RunOptions
from symphony.client.views import (
    Adapter, Audit, Gateway, Key, KvFile, KvPages, KvTokens, Limits, NewKey, Prefixes, Program,
    Role, Run, RunResult, Secret, Statistics, Tenant, Trace, Usage,
)
from symphony.client.websocket import AsyncWebSocket
'''
_RENAMED = {"AsyncIterator": "Iterator", "AsyncWebSocket": "WebSocket"}
_OPENING = {
    "AsyncWebSocket": """
    def __init__(self, portal: Portal, socket: AsyncWebSocket) -> None:
        self._portal = portal
        self._socket = socket

    @property
    def last_id(self) -> int:
        return self._socket.last_id

    @property
    def status(self) -> str | None:
        return self._socket.status
""",
    "": """
    def __init__(self, portal: Portal) -> None:
        self._portal = portal
""",
    "AsyncClient": """
    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        operator: bool = False,
        retries: int = RETRIES_DEFAULT,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        found = find_server(url, key, operator=operator)
        self._portal = Portal(
            lambda: AsyncClient(*found, retries=retries, answer_bytes_max=answer_bytes_max)
        )
        self.programs = Programs(self._portal)
        self.runs = Runs(self._portal)
        self.kv = Kv(self._portal)
        self.adapters = Adapters(self._portal)
        self.secrets = Secrets(self._portal)
        self.admin = Admin(self._portal)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        \"\"\"Close all connections. A client that is dropped closes them, too.\"\"\"
        self._portal.close()
""",
}
_WORDS = {
    "AsyncClient": '''"""A connection to one server with one key; also a context manager.

        with Client(url, key) as client:
            program = client.programs.upload(Path("chat.wasm").read_bytes(), name="chat")
            result = client.run(program["id"], input="Hello")
            for event in client.stream("chat", input="Hello"):
                ...

    Threads may share it, and a process that was forked may use it. All else is as of AsyncClient.
    """''',
}  # fmt: skip


class _Sync(ast.NodeTransformer):
    """Names and types of the synchronous client."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = _RENAMED.get(node.id, node.id)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if ast.unparse(node.right).startswith("AsyncIterable["):
            return node.left
        self.generic_visit(node)
        return node


def sync_client() -> str:
    """Return the module's text."""
    parts = [_HEAD]
    for module, (name, reached) in CLASSES.items():
        tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
        [found] = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
        parts.append(_class(found, reached))
    done = subprocess.run(  # noqa: S603 - our own arguments
        [Path(sys.executable).with_name("ruff"), "format", "--stdin-filename", str(PAGE), "-"],
        input="\n\n".join(parts), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def _class(found: ast.ClassDef, reached: str) -> str:
    words = _WORDS.get(found.name) or f'"""{ast.get_docstring(found, clean=False)}"""'
    methods = [
        _method(node, reached)
        for node in found.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
    ]
    opening = _OPENING.get(found.name, _OPENING[""])
    return "\n".join(
        [f"class {found.name.removeprefix('Async')}:", f"    {words}", opening, *methods]
    )


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef, reached: str) -> str:
    if any(ast.unparse(each) == "property" for each in node.decorator_list):
        return _property(node)
    assert node.returns is not None, node.name
    given = f"{reached}.{node.name}({_arguments(node.args)})"
    act = f"lambda client: {given}" if reached.startswith("client") else f"lambda _: {given}"
    returned, managed = ast.unparse(node.returns), bool(node.decorator_list)
    arguments = ast.unparse(_Sync().visit(node.args))
    result = ast.unparse(_Sync().visit(node.returns))
    if managed:
        body = (
            f"with self._portal.entered({act}) as socket:\n"
            "            yield WebSocket(self._portal, socket)"
        )
    elif returned == "AsyncIterator[bytes]" and node.name == "download":
        result, body = "BinaryIO", f"return self._portal.file({act})"
    elif returned.startswith("AsyncIterator["):
        body = f"return self._portal.iterate({act})"
    else:
        call = f"self._portal.call({act})"
        body = call if returned == "None" else f"return {call}"
    words = ast.get_docstring(node, clean=False)
    lines = [
        "    @contextmanager" if managed else "",
        f"    def {node.name}({arguments}) -> {result}:",
        f'        """{words}"""' if words else "",
        f"        {body}",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    words = ast.get_docstring(node)
    return (
        f"    @property\n    def {node.name}(self) -> {ast.unparse(node.returns)}:\n"  # type: ignore[arg-type]
        f'        """{words}"""\n        return self._portal.client.{node.name}\n'
    )


def _arguments(arguments: ast.arguments) -> str:
    """Return the arguments of a call that hands all parameters on."""
    given = [each.arg for each in arguments.args[1:]]
    given += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    given += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return ", ".join(given)


if __name__ == "__main__":
    PAGE.write_text(sync_client(), encoding="utf-8")
