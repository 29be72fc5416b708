"""The option `model`: one, several, with names of the operator's or their own."""

from pathlib import Path
from typing import Any

import pytest
from symphony_kernel.executor.models.assets import model_name
from symphony_runtime.cli.main import make_parser
from symphony_runtime.config.models import (
    MODELS_MAX,
    ModelChoice,
    name_models,
    own_name,
    parse_models,
)
from symphony_runtime.config.serve import OptionsError, read_options


def read(tmp_path: Path, text: str, **given: Any) -> list[ModelChoice]:
    file = tmp_path / "symphony.toml"
    file.write_text(text)
    return parse_models(read_options(file, given).model)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", [("", "tiny")]),
        ('model = "./qwen"', [("", "./qwen")]),
        ('model = "small=./qwen"', [("small", "./qwen")]),
        ('model = ["tiny", "small=org/qwen:Q8_0"]', [("", "tiny"), ("small", "org/qwen:Q8_0")]),
        ('[model]\ntiny = "tiny"\n"org/b" = "./a=b"', [("tiny", "tiny"), ("org/b", "./a=b")]),
    ],
)
def test_file_names_one_model_or_several(
    tmp_path: Path, text: str, wanted: list[tuple[str, str]]
) -> None:
    assert read(tmp_path, text) == [ModelChoice(*each) for each in wanted]


def test_flags_are_in_place_of_the_files_models(tmp_path: Path) -> None:
    flags = (
        make_parser(serves=True).parse_args(["serve", "--model", "a=tiny", "--model", "b"]).model
    )
    assert read(tmp_path, 'model = ["x", "y", "z"]', model=flags) == [
        ModelChoice("a", "tiny"), ModelChoice("", "b")
    ]  # fmt: skip
    assert make_parser(serves=True).parse_args(["serve"]).model is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = 5", "model must be a string or a list"),
        ("model = [5]", "model must be a string or a list"),
        ("model = []", f"1 to {MODELS_MAX} models, not 0"),
        ("[model]", f"1 to {MODELS_MAX} models, not 0"),
        (f"model = {[f'm{n}=tiny' for n in range(MODELS_MAX + 1)]}", "models, not 17"),
        ('model = ["a=tiny", "a=./b"]', "two models have the name a"),
        ('[model]\n"a:b" = "tiny"', "'a:b' is no name"),
        ('[model]\na = ""', "a has no folder"),
        ('model = ""', "a model has no folder"),
    ],
)
def test_wrong_models_are_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        read(tmp_path, text)


def test_path_with_an_equals_sign_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    assert parse_models("a=b") == [ModelChoice("", "a=b")]
    assert parse_models("c=a=b") == [ModelChoice("c", "a=b")]


def test_models_have_the_names_of_their_files_unless_the_operator_names_them(
    tmp_path: Path,
) -> None:
    cached = tmp_path / "models--org--qwen" / "snapshots" / "abc"
    cached.mkdir(parents=True)
    for name in ("small.gguf", "large-00001-of-00002.GGUF"):
        (tmp_path / name).write_bytes(b"GGUF")
    choices = [
        ModelChoice("mine", str(tmp_path)),
        ModelChoice("", "tiny"),
        ModelChoice("", str(cached)),
        ModelChoice("", str(tmp_path / "small.gguf")),
        ModelChoice("", str(tmp_path / "large-00001-of-00002.GGUF")),
    ]
    assert list(name_models(choices)) == ["mine", "tiny", "org/qwen", "small", "large"]
    for choice in choices[2:]:  # as a kernel that serves it alone
        assert own_name(choice.source) == model_name(Path(choice.source))
    with pytest.raises(ValueError, match="two models have the name tiny"):
        name_models([ModelChoice("", "tiny"), ModelChoice("tiny", "./other")])
    odd = tmp_path / "a b"
    odd.mkdir()
    with pytest.raises(ValueError, match="'a b' is no name"):
        name_models([ModelChoice("", str(odd)), ModelChoice("", "tiny")])
