"""The types of what a client gets, from the OpenAPI document: `python -m tools.client_types`.

It writes client/symphony/client/views.py: a TypedDict for each schema that a method of the client
returns, with one of its own for each object in it.
"""

import keyword
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from symphony_runtime.gateway.api.schemas import SCHEMAS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "client/symphony/client/views.py"
WANTED = (
    "Readiness", "Program", "ProgramVersion", "Run", "RunResult", "ChildList", "Trace", "Limits",
    "Secret", "Adapter",
    "KvFile", "KvPages", "KvTokens", "Prefixes", "Tenant", "Key", "NewKey", "Gateway", "Usage",
    "Audit", "Statistics",
)  # fmt: skip
_HEAD = '''"""What a server answers, as types. Made by `python -m tools.client_types`: do not edit.

They are the schemas of the server's OpenAPI document. A newer server may send more members.
"""

from typing import Any, Literal, NotRequired, TypedDict
'''
_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_LINE_MAX = 100
# Names of objects in objects, by member, or by schema and member; else both together.
_INNER = {
    "usage": "RunUsage", "limits": "RunLimits", "held": "Held", "Limits.limits": "Bound",
    "RunResult.message": "Base64", "Message": "Base64", "ChildList.data": "Child",
    "KvPages.data": "PageRange", "KvPages.lineage": "Lineage", "KvPagesLineage.part": "LineagePart",
    "Lineage.part": "LineagePart", "Prefixes.data": "PrefixPart", "Readiness.role": "Role",
    "Role.progress": "Progress",
}  # fmt: skip


class Types:
    """The classes of the schemas: their texts by name, each behind those that it uses."""

    def __init__(self, schemas: dict[str, Any]) -> None:
        self._schemas = schemas
        self.classes: dict[str, str] = {}

    def add(self, name: str, schema: dict[str, Any]) -> str:
        """Make the class of an object, unless it is there; return its name."""
        required = set(schema.get("required", ()))
        lines: list[str] = []
        for field, value in schema["properties"].items():
            assert field.isidentifier(), field
            assert not keyword.iskeyword(field), field
            kind = self._type(name, field, value)
            kind = kind if field in required else f"NotRequired[{kind}]"
            lines += _line(field, kind, value.get("description", ""))
        text = "\n".join([f"class {name}(TypedDict):", *lines])
        assert self.classes.setdefault(name, text) == text, f"two types {name}"
        return name

    def _type(self, owner: str, field: str, schema: dict[str, Any]) -> str:
        if reference := schema.get("$ref"):
            return self._referred(reference.rpartition("/")[2])
        if "const" in schema:
            return f"Literal[{schema['const']!r}]"
        if "enum" in schema:
            return f"Literal[{', '.join(map(repr, schema['enum']))}]"
        if "oneOf" in schema:
            return " | ".join(self._type(owner, field, each) for each in schema["oneOf"])
        kinds = schema.get("type", "object")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        return " | ".join(self._plain(owner, field, kind, schema) for kind in kinds)

    def _referred(self, name: str) -> str:
        schema = self._schemas[name]
        return self.add(name, schema) if "properties" in schema else self._type("", name, schema)

    def _plain(self, owner: str, field: str, kind: str, schema: dict[str, Any]) -> str:
        if kind == "array":
            return f"list[{self._type(owner, field.removesuffix('s'), schema['items'])}]"
        if kind != "object":
            return _NAMES[kind]
        inner = _INNER.get(f"{owner}.{field}") or _INNER.get(field) or owner + _camel(field)
        if properties := list(schema.get("properties", {}).values()):
            first = properties[0]
            if first.get("type") == "object" and properties.count(first) == len(properties):
                return f"dict[str, {self.add(inner, first)}]"  # many alike
            return self.add(inner, schema)
        values = schema.get("additionalProperties")
        return f"dict[str, {self._type(owner, field, values) if values else 'Any'}]"


def _line(field: str, kind: str, words: str) -> Iterator[str]:
    line = f"    {field}: {kind}"
    if words and len(line) + len(words) + 4 > _LINE_MAX:
        yield f"    # {words}"
    yield f"{line}  # {words}" if words and len(line) + len(words) + 4 <= _LINE_MAX else line


def _camel(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))


def client_types() -> str:
    """Return the module's text."""
    types = Types(SCHEMAS)
    for name in WANTED:
        types.add(name, SCHEMAS[name])
    text = "\n\n\n".join([_HEAD.rstrip(), *types.classes.values()]) + "\n"
    done = subprocess.run(  # noqa: S603 - our own arguments
        [Path(sys.executable).with_name("ruff"), "format", "--stdin-filename", str(PAGE), "-"],
        input=text, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


if __name__ == "__main__":
    PAGE.write_text(client_types(), encoding="utf-8")
