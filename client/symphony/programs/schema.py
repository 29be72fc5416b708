"""The JSON schema of a function's parameters and of what it returns.

Types are those that JSON has a form for: str, int, float, bool, None, lists, tuples, sets, dicts,
Literal, Enum, Optional, unions, dataclasses, TypedDict, NamedTuple, datetime and UUID. A union has
at most one type of each kind of JSON value, so that a value says which one it is.
"""

import copy
import inspect
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_IMMUTABLE = (str, int, float, bool, Enum, type(None))


class SignatureError(TypeError):
    """A function whose signature has no JSON schema."""


class ValueRefused(ValueError):  # noqa: N818 - it says what has happened
    """A value that is not as the schema says; the message names its place."""


class Signature:
    """A function's parameters and its result, as JSON."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """SignatureError names the parameter whose type has no JSON schema."""
        self._name = function.__name__
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except NameError as error:
            raise SignatureError(f"{self._name}: {error}") from None
        parameters = inspect.signature(function).parameters
        fields = [self._field(each, hints) for each in parameters.values()]
        self._parameters = msgspec.defstruct(
            self._name, fields, kw_only=True, forbid_unknown_fields=True
        )
        self._order = list(parameters)
        self._result = hints.get("return", Any)
        self.input_schema = _schema(self._parameters, self._name)
        self.output_schema = _schema(self._result, f"what {self._name} returns")

    def _field(self, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> tuple[Any, ...]:
        name, place = parameter.name, f"{self._name}: the parameter `{parameter.name}`"
        if parameter.kind not in (_POSITIONAL, _KEYWORD):
            raise SignatureError(f"{place} must have a name of its own: no *, no **, no /")
        if name not in hints:
            raise SignatureError(f"{place} has no type: write `{name}: str`, say")
        kind = hints[name]
        _schema(kind, place)
        if parameter.default is inspect.Parameter.empty:
            return (name, kind)
        default = parameter.default
        try:
            msgspec.convert(msgspec.to_builtins(default), kind)
        except (TypeError, ValueError) as error:
            raise SignatureError(
                f"{place} has a default that is none of its type: {error}"
            ) from None
        if isinstance(default, _IMMUTABLE):
            return (name, kind, msgspec.field(default=default))
        return (name, kind, msgspec.field(default_factory=lambda: copy.deepcopy(default)))

    def bind(self, *args: Any, **given: Any) -> dict[str, Any]:
        """Return arguments as JSON has them, checked; TypeError, ValueRefused."""
        if len(args) > len(self._order):
            most = len(self._order)
            raise TypeError(f"{self._name} takes {most} arguments, and got {len(args)}")
        named = dict(zip(self._order, args, strict=False))
        if twice := named.keys() & given.keys():
            raise TypeError(f"{self._name} got {sorted(twice)[0]!r} twice")
        packed = {name: msgspec.to_builtins(value) for name, value in (named | given).items()}
        self.parse(packed)
        return packed

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call from JSON's values, with defaults; ValueRefused."""
        try:
            parsed = msgspec.convert(dict(given), self._parameters)
        except msgspec.ValidationError as error:
            raise ValueRefused(f"{self._name}: {error}") from None
        return {name: getattr(parsed, name) for name in self._order}

    def dump(self, result: Any) -> Any:
        """Return a result as JSON has it; ValueRefused: it is not of the type that is said."""
        try:
            packed = msgspec.to_builtins(result)
        except TypeError as error:
            raise ValueRefused(f"what {self._name} returned: {error}") from None
        self.load(packed)
        return packed

    def load(self, value: Any) -> Any:
        """Return a result of its own type from JSON's value; ValueRefused."""
        try:
            return msgspec.convert(value, self._result)
        except msgspec.ValidationError as error:
            raise ValueRefused(f"what {self._name} returned: {error}") from None


def _schema(kind: Any, place: str) -> dict[str, Any]:
    """Return the JSON schema of a type; SignatureError: it has none."""
    try:
        return msgspec.json.schema(kind)
    except (TypeError, ValueError) as error:
        words = str(error).partition(" - ")[0].partition("\n")[0]
        shown = getattr(kind, "__name__", str(kind))
        raise SignatureError(f"{place}: {shown} has no JSON schema: {words}") from None
