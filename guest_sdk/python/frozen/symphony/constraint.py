"""Constraints: texts that are instances of a JSON schema, or match an expression or a grammar."""

import _lip
import json


class Constraint:
    """A compiled schema, expression or grammar. The server compiles each text once and keeps it."""

    def __init__(self, handle):
        self.handle = handle

    @classmethod
    async def json_schema(cls, schema):
        """Compile a JSON schema; EINVAL, EFBIG with what is wrong in words."""
        return cls(_lip.constraint(0, schema if isinstance(schema, str) else json.dumps(schema)))

    @classmethod
    async def regex(cls, expression):
        """Compile a regular expression, without look-around and back-references."""
        return cls(_lip.constraint(1, expression))

    @classmethod
    async def lark(cls, grammar):
        """Compile a context-free grammar in Lark's syntax; it begins with `start`."""
        return cls(_lip.constraint(2, grammar))

    def close(self):
        """Close the handle."""
        if self.handle is not None:
            handle, self.handle = self.handle, None
            _lip.constraint_close(handle)

    def __del__(self):
        self.close()
