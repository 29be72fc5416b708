"""The models of a server: the option `model` of `symphony serve`.

    --model tiny --model small=./qwen          on the command line

    model = "tiny"                             # one
    model = ["tiny", "small=./qwen"]           # several; the first is the default

    [model]                                    # several, by name
    tiny = "tiny"
    small = "./qwen"

A model is `tiny`, a folder, a GGUF file, or org/name at the Hugging Face Hub. Its name is what
clients send as `model`. Without one of the operator it is the folder's, the file's or the hub's.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MODELS_MAX = 16
TINY = "tiny"
# No colon: `model:adapter` names an adapter.
_NAME = re.compile(r"[A-Za-z0-9][\w./-]{0,127}", re.ASCII)
_SPLIT = re.compile(r"-00001-of-\d{5}\Z")  # of a GGUF file in several parts
_NAMED = re.compile(rf"(?P<name>{_NAME.pattern})=(?P<source>.+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that an operator has chosen. `name` is "" where the operator gave none."""

    name: str
    source: str


def parse_models(value: "str | list[str] | Mapping[str, str]") -> list[ModelChoice]:
    """Return the models of the option, the default first.

    Raises ValueError: there are none or too many, a name is malformed, or two are equal.
    """
    if isinstance(value, str):
        choices = [_parse(value)]
    elif isinstance(value, Mapping):
        choices = [ModelChoice(name, source) for name, source in value.items()]
    else:
        choices = [_parse(each) for each in value]
    if not 1 <= len(choices) <= MODELS_MAX:
        raise ValueError(f"model: a server has 1 to {MODELS_MAX} models, not {len(choices)}")
    for choice in choices:
        if not choice.source:
            raise ValueError(f"model: {choice.name or 'a model'} has no folder, file or name")
        if isinstance(value, Mapping) or choice.name:
            _check_name(choice.name)
    _check_different(choice.name for choice in choices if choice.name)
    return choices


def name_models(choices: list[ModelChoice]) -> dict[str, str]:
    """Return the paths of several located models by name, the default first.

    Raises ValueError: a model's own name is not one that clients can send, or two are equal.
    """
    named = [
        ModelChoice(choice.name or own_name(choice.source), choice.source) for choice in choices
    ]
    for choice in named:
        _check_name(choice.name)
    _check_different(choice.name for choice in named)
    return {choice.name: choice.source for choice in named}


def own_name(source: str) -> str:
    """Return the name of a located model that the operator gave none.

    It is the one that its kernel would give it: the file's, the folder's, or the repository's of a
    folder in a Hugging Face cache.
    """
    path = Path(source)
    if source == TINY:
        return TINY
    if path.suffix.lower() == ".gguf":
        return _SPLIT.sub("", path.stem)
    path = path.resolve()
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        return path.parents[1].name.removeprefix("models--").replace("--", "/")
    return path.name


def _parse(text: str) -> ModelChoice:
    """Return the model of `NAME=MODEL` or `MODEL`; a path that exists has no name before it."""
    found = _NAMED.fullmatch(text)
    if found is None or Path(text).exists():
        return ModelChoice("", text)
    return ModelChoice(found["name"], found["source"])


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"model: {name[:64]!r} is no name: 1 to 128 letters, digits and . _ - /, a letter or a "
            "digit first; NAME=MODEL gives a model another name"
        )


def _check_different(names: Iterable[str]) -> None:
    seen = set[str]()
    for name in names:
        if name in seen:
            raise ValueError(
                f"model: two models have the name {name}; NAME=MODEL gives one another name"
            )
        seen.add(name)
