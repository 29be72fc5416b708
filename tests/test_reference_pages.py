"""The pages of the command line and of the options say what the parser and the model say."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.cli.main import make_parser
from symphony_runtime.config.serve import ServeOptions, read_options

from tests.support.server.server import running_server
from tools import cli_page, configuration_page
from tools.page_parts import replaced

ROOT = Path(__file__).parents[1]
CLI, CONFIGURATION = (
    (ROOT / page.PAGE).read_text() for page in (cli_page, configuration_page)
)  # fmt: skip
(SAMPLE,) = re.findall(r"```toml\n(.*?)```", CONFIGURATION, re.DOTALL)


def test_command_line_page_has_the_parsers_commands() -> None:
    assert replaced(CLI, "cli_page", cli_page.cli_part()) == CLI
    headings = re.findall(r"^### `(symphony [^`]*)`$", CLI, re.MULTILINE)
    assert len(headings) == len(list(cli_page.commands(make_parser(serves=True))))
    assert {h.split()[1] for h in headings} >= {"serve", "run", "servers", "kv", "admin", "build"}


def test_configuration_page_has_the_models_options() -> None:
    part = configuration_page.configuration_part()
    assert replaced(CONFIGURATION, "configuration_page", part) == CONFIGURATION
    of_tests = {"executor", "simulated"}
    assert configuration_page.options().keys() == ServeOptions.model_fields.keys() - of_tests
    flags = set(re.findall(r"`--([a-z-]+)`", part))
    serve = next(c for c in cli_page.commands(make_parser(serves=True)) if "serve" in c.prog)
    taken = {name.removeprefix("--") for a in serve._actions for name in a.option_strings}
    assert flags == taken - {"help", "-h", "config", "executor"}


def test_page_without_its_generated_part_is_refused() -> None:
    with pytest.raises(ValueError, match="0 parts"):
        replaced("nothing", "cli_page", "x")


@pytest.mark.parametrize("name", tomllib.loads(SAMPLE))
def test_option_of_the_sample_is_taken_alone(name: str, tmp_path: Path) -> None:
    value = tomllib.loads(SAMPLE)[name]
    text = f"{name} = {_toml(value)}\n"
    file = tmp_path / "symphony.toml"
    file.write_text(text)
    read = getattr(read_options(file, {}), name)
    assert read == (tmp_path / value if name == "data_dir" else read)
    assert tomllib.loads(text) == {name: value}
    assert name in configuration_page.options()


def test_server_starts_with_the_sample(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "tool_server.py", tmp_path)
    file = tmp_path / "symphony.toml"
    file.write_text(SAMPLE)
    with running_server(tmp_path / "data", "--config", str(file)) as server:
        done = server.symphony("top", "--json")
        roles = json.loads(done.stdout)["roles"]
        assert [role["role"] for role in roles] == ["gateway", "kernel", "worker-0", "worker-1"]


def _toml(value: Any) -> str:
    """Return a value as TOML, tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
