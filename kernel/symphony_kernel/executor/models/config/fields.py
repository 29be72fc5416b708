"""A JSON object with typed access."""

from typing import Any

from symphony_kernel.executor.models.file_reader import CheckpointError, shown

# More than any model has: bounds what is allocated or counted before weights are read.
_MOST = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "moe_intermediate_size": 1 << 20,
    "num_hidden_layers": 1 << 10,
    "num_attention_heads": 1 << 10,
    "num_key_value_heads": 1 << 10,
    "head_dim": 1 << 10,
    "num_experts": 1 << 10,
    "num_local_experts": 1 << 10,
    "num_experts_per_tok": 1 << 6,
}
_MOST_TOKENS = 1 << 40  # bound of all other integers: contexts and windows
_NUMBERS = (1e-20, 1e12)  # the smallest and largest: within these nothing overflows


class Fields:
    """A JSON object with typed access; a wrong type is a `CheckpointError`."""

    def __init__(self, values: dict[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def error(self, words: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {words}")

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer; without a default the key is required."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{key} must be a positive integer, not {shown(value)}")
        most = _MOST.get(key, _MOST_TOKENS)
        if value > most:
            raise self.error(f"{key} is {shown(value)}; at most {most} are supported")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number; without a default the key is required."""
        value: Any = self.values.get(key)
        if value is None and default is not None:
            return default
        return self._number(key, value)

    def optional(self, key: str, default: float) -> float:
        """Return a positive number; the default without the key, and 0.0 for null."""
        if key not in self.values:
            return default
        value = self.values[key]
        return 0.0 if value is None else self._number(key, value)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Return so many positive numbers."""
        given = self.values.get(key)
        if not isinstance(given, list) or len(given) != count:
            raise self.error(f"{key} must be a list of {count} numbers")
        return tuple(self._number(key, value) for value in given)

    def _number(self, key: str, value: Any) -> float:
        least, most = _NUMBERS
        if type(value) not in (int, float) or not least <= value <= most:
            raise self.error(
                f"{key} must be a positive number, from {least:g} to {most:g}, not {shown(value)}"
            )
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {shown(value)}")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """Return token ids, from one integer, a list of them, or a missing key."""
        value = self.values.get(key)
        found = () if value is None else tuple(value) if isinstance(value, list) else (value,)
        if any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in found):
            raise self.error(f"{key} must hold token ids, not {shown(value)}")
        return found

    def part(self, key: str) -> "Fields":
        """Return the values of an object in this one that are not null; none without the key."""
        given = self.values.get(key)
        if given is None:
            given = {}
        if not isinstance(given, dict):
            raise self.error(f"{key} must be an object, not {shown(given)}")
        found = {name: value for name, value in given.items() if value is not None}
        return Fields(found, f"{self.source} ({key})")

    def refuse(self, key: str, harmless: tuple[object, ...]) -> None:
        """Raise `CheckpointError` unless the key is absent or has a harmless value."""
        value = self.values.get(key)
        if value is not None and value not in harmless:
            raise self.error(f"{key} {shown(value)} is not supported")
