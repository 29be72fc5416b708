"""The configuration of a server that `symphony dev` starts."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_runtime.cli.development.local_server import checked_options, own_server, to_toml
from symphony_runtime.cli.output import CommandError

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


def test_options_of_a_project_that_could_do_harm_are_refused_by_name() -> None:
    harmful = {"tools": {"x": {"command": ["sh"]}}, "host": "0.0.0.0", "data_dir": "/", "port": 1}
    for name, value in harmful.items():
        with pytest.raises(CommandError, match=f"may set {name} in its .* `symphony serve`"):
            checked_options(Path("/p"), {"model": "tiny", name: value})
    kept = {"model": "tiny", "limits": {"live_runs": 2}}
    assert checked_options(Path("/p"), kept) == kept
    assert checked_options(Path("/p"), {"model": "../m"})["model"] == "/p/../m"
    for several in (["tiny", "a=../m"], {"tiny": "tiny"}):
        with pytest.raises(CommandError, match="one model"):
            checked_options(Path("/p"), {"model": several})


async def test_configuration_is_not_written_into_the_project(tmp_path: Path) -> None:
    """A file there could be a link to one of the user's."""
    own = tmp_path / "own"
    (tmp_path / f".symphony-{os.getpid()}.toml").symlink_to(own)
    serve = {"limits": {"no_such_limit": 1}}  # the server reads its configuration, and ends
    with pytest.raises(CommandError, match="no_such_limit"):
        async with own_server(tmp_path, serve, lambda _: None):
            pass
    assert not own.exists()
