"""Constraints: texts that are instances of a JSON schema, or match an expression or a grammar."""

import json
from collections.abc import Mapping
from typing import Any

from symphony.attached.run import AttachedRun, current

_JSON_SCHEMA, _REGEX, _LARK = range(3)


class Constraint:
    """A compiled schema, expression or grammar. The server compiles each text once and keeps it.

    The state of a text is each file's: forks continue from where they are forked, and `truncate`
    takes text back. One text behind another in the same file needs another constraint, or `since`.
    """

    def __init__(self, run: AttachedRun, handle: int) -> None:
        self._run, self.handle = run, handle

    @classmethod
    async def json_schema(cls, schema: str | Mapping[str, Any]) -> "Constraint":
        """Compile a JSON schema; EINVAL, EFBIG with what is wrong in words."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return await cls._compile(_JSON_SCHEMA, text)

    @classmethod
    async def regex(cls, expression: str) -> "Constraint":
        """Compile a regular expression, without look-around and back-references."""
        return await cls._compile(_REGEX, expression)

    @classmethod
    async def lark(cls, grammar: str) -> "Constraint":
        """Compile a context-free grammar in Lark's syntax; it begins with `start`."""
        return await cls._compile(_LARK, grammar)

    @classmethod
    async def _compile(cls, kind: int, text: str) -> "Constraint":
        run = current()
        return cls(run, await run.calls.start("constraint", {"kind": kind, "text": text}))

    def close(self) -> None:
        """Close the handle."""
        self._run.calls.post("constraint_close", {"constraint": self.handle})
