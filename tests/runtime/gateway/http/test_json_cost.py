"""The cost of parsing a body is known before it is parsed, with any strings in it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_runtime.gateway.http import json_cost
from symphony_runtime.gateway.http.json_cost import parse_cost

# Strings of what could be taken for the end of one, or for values.
TEXTS = st.text(alphabet='\\"{[:,ab\u00fc\U0001f600\n', max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=30,
)


def cost_of(value: Any) -> int:
    """The cost without what strings cost, from the value itself."""
    if isinstance(value, list | dict):
        inner = value.values() if isinstance(value, dict) else value
        keys = 16 * len(value) if isinstance(value, dict) else 0
        return 4 + keys + max(0, len(value) - 1) + sum(map(cost_of, inner))
    return 0


@given(VALUES, st.booleans(), st.integers(0, 3))
def test_parse_cost_counts_values_and_no_strings(value: Any, ascii_only: bool, slices: int) -> None:
    # Padding moves what follows over the edge of a slice, where an escape may be.
    padding = "\\" * ((64 << 10) * slices // 2 - 3) if slices else ""
    whole = [padding, value, "{" * 100]
    body = json.dumps(whole, ensure_ascii=ascii_only).encode()
    exact = cost_of(whole)
    assert parse_cost(body, exact) == exact
    assert parse_cost(body, exact - 1) > exact - 1


def test_long_run_of_backslashes_is_counted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one slice, byte by byte, the interpreter was held for more than a second."""
    slices: list[bytes] = []
    cost = json_cost._cost

    def counted(text: bytes) -> int:
        slices.append(text)
        return cost(text)

    monkeypatch.setattr(json_cost, "_cost", counted)
    body = json.dumps(["," * 1_000, "\\" * (7 << 20), [1, 2]]).encode()
    assert parse_cost(body, 100) == 4 + 2 + 4 + 1
    assert len(slices) >= len(body) / (64 << 10)


def test_many_values_cost_much_and_a_text_of_them_little() -> None:
    table = ",".join(f'{n}: "[{n}]"' for n in range(100_000))
    most = 1 << 19
    assert parse_cost(json.dumps({"prompt": table * 4}).encode(), most) < 100
    assert parse_cost(json.dumps({"prompt": "\\" * 1_000_001}).encode(), 10) < 100
    larges: list[Any] = [
        {f"k{n}": n for n in range(40_000)},
        [[] for _ in range(110_000)],
        [0] * (most + 2),
        [""] * (most + 2),
    ]
    for large in larges:
        assert parse_cost(json.dumps(large).encode(), most) > most
    for small in (list(range(131_072)), {f"k{n}": n for n in range(30_000)}):
        assert parse_cost(json.dumps(small).encode(), most) <= most
