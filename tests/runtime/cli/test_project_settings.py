"""A project's settings, and the manifest that they give its program."""

import json
from pathlib import Path

import pytest
from symphony_runtime.cli.output import CommandError
from symphony_runtime.cli.project_settings import FILE, manifest_text, read_settings


def test_settings_without_a_file_are_the_defaults(tmp_path: Path) -> None:
    settings = read_settings(tmp_path)
    assert (settings.program.input, settings.program.limits, settings.serve) == ("", {}, {})
    assert manifest_text(tmp_path) is None


def test_settings_have_what_the_file_says(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(
        '[program]\nname = "p"\ninput = { a = [1] }\nlimits = { wall_ms = 5 }\n'
        'description = "d"\noutput_schema = { type = "string" }\n[serve]\nmodel = "m"\n'
    )
    settings = read_settings(tmp_path)
    assert (settings.program.name, settings.program.input) == ("p", {"a": [1]})
    assert settings.serve == {"model": "m"}
    manifest = {"description": "d", "output_schema": {"type": "string"}}
    assert json.loads(manifest_text(tmp_path) or b"") == manifest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[program", "symphony.toml: "),
        ("[program]\nnmae = 1", "did you mean name"),
        ('[program]\nlimits = "x"', "program: limits must be a table"),
        ("program = 1", "program must be a table"),
        ("[prgram]", "did you mean program"),
    ],
)
def test_settings_that_are_wrong_are_refused_in_words(
    text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CommandError, match=words):
        read_settings(tmp_path)


def test_manifest_in_two_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('[program]\ndescription = "d"\n')
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(CommandError, match="must not have description"):
        manifest_text(tmp_path)
