"""The configuration of a server that `symphony dev` starts."""

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from symphony_runtime.cli.development.local_server import to_toml

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
PLAIN = st.booleans() | st.integers(-(2**40), 2**40) | TEXT
VALUES = st.recursive(
    PLAIN | st.lists(PLAIN, max_size=3),
    lambda inner: st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_toml_of_a_table_reads_as_that_table(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table
