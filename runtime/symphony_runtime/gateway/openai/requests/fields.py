"""A JSON object that is read field by field, and may hold no other."""

from typing import Any

from symphony_runtime.gateway.openai.errors import refused

_MISSING = object()


class Fields:
    """An object's fields; null is like a field left out. `end` refuses what nobody has read.

    `ignored` are fields without effect; `only` are fields of which only these values are taken.
    """

    def __init__(
        self, body: dict[str, Any], ignored: set[str], only: dict[str, tuple[Any, ...]]
    ) -> None:
        self._left = {key: value for key, value in body.items() if value is not None}
        self._ignored = ignored
        self._only = only

    def take(self, name: str, default: Any = _MISSING) -> Any:
        """Return a field's value.

        Raises:
            OpenAIError: 400, it is missing and has no default.
        """
        value = self._left.pop(name, default)
        if value is _MISSING:
            raise refused(f"you must provide `{name}`", name)
        return value

    def skip(self, name: str) -> None:
        """Read a field that somebody else looks at."""
        self._left.pop(name, None)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a field that is true or false."""
        value = self._left.pop(name, default)
        if not isinstance(value, bool):
            raise refused(f"`{name}` must be true or false", name)
        return value

    def optional_integer(self, name: str, low: int, high: int, source: str = "") -> int | None:
        """Return an integer field, or None where it is left out; `source`: where `high` is from."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        # 5.0 is an integer to JSON, and some clients write it so.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            words = f"`{name}` must be an integer from {low} to {high}"
            said = f"; it is {value}" if isinstance(value, int) and abs(value) < 1 << 64 else ""
            raise refused(f"{words}{f' ({source})' if source else ''}{said}", name)
        return value

    def integer(self, name: str, default: int, low: int, high: int, source: str = "") -> int:
        """Return an integer field; `source`: where `high` is from."""
        value = self.optional_integer(name, low, high, source)
        return default if value is None else value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """Return a number field."""
        value = self._left.pop(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise refused(f"`{name}` must be a number", name)
        if not low <= value <= high:
            raise refused(f"`{name}` must be from {low:g} to {high:g}", name)
        return float(value)

    def end(self) -> None:
        """Refuse what is left.

        Raises:
            OpenAIError: 400.
        """
        for name, value in self._left.items():
            if name in self._ignored:
                continue
            if name not in self._only:
                raise refused(f"Unrecognized request argument supplied: {name}", name,
                              "unknown_parameter")  # fmt: skip
            if value not in self._only[name]:
                raise refused(f"`{name}` is not supported, or not with this value", name,
                              "unsupported_parameter")  # fmt: skip
