"""`symphony serve`: flags from the options' model, and the start of the supervisor."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from symphony_runtime.cli.output import say
from symphony_runtime.cli.serving.hub import locate_model
from symphony_runtime.config.models import ModelChoice, name_models, parse_models
from symphony_runtime.config.serve import FILE_ONLY, OptionsError, ServeOptions, read_options


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, {text!r} is none") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, {text!r} is none") from None


_TYPES: dict[str, Callable[[str], Any]] = {
    "integer": _integer, "number": _number, "string": str, "array": lambda text: text.split(",")
}  # fmt: skip


def serve(options: argparse.Namespace) -> int:
    from symphony_runtime.supervisor.supervisor import serve as run_server

    given = {k: v for k, v in vars(options).items() if k in ServeOptions.model_fields}
    given["store"] = options.store or os.environ.get("SYMPHONY_STORE") or None
    read = read_options(options.config, given)
    return run_server(read.model_copy(update={"model": _locate(read)}))


def _locate(options: ServeOptions) -> str | dict[str, str]:
    """Return the path of the model, or of each model by its name; CommandError, OptionsError."""
    choices = [
        ModelChoice(choice.name, locate_model(choice.source, Path(), say))
        for choice in parse_models(options.model)
    ]
    if len(choices) == 1 and not choices[0].name:
        return choices[0].source  # its kernel names it
    try:
        return name_models(choices)
    except ValueError as error:
        raise OptionsError(str(error)) from error


def add_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with options")
    for name, schema in ServeOptions.model_json_schema()["properties"].items():
        if "description" in schema and not schema.keys() & FILE_ONLY.keys():
            _add_flag(serve, name, schema)
    # For tests and benchmarks of everything but the model.
    serve.add_argument("--executor", choices=("torch", "simulated"), help=argparse.SUPPRESS)


def _add_flag(serve: argparse.ArgumentParser, name: str, schema: dict[str, Any]) -> None:
    """Add an option's flag; its value is None unless it is given."""
    flag, words, default = name.replace("_", "-"), schema["description"], schema.get("default")
    kinds = schema.get("anyOf", [schema])
    kind, repeated = kinds[0], any(each["type"] == "array" for each in kinds[1:])
    if kind["type"] == "boolean":
        prefix, action = ("no-", "store_false") if default else ("", "store_true")
        serve.add_argument(f"--{prefix}{flag}", dest=name, action=action, default=None, help=words)
        return
    if default not in (None, ""):
        words = f"{words}; default {default}"
    is_path = kind.get("format") == "path"
    serve.add_argument(
        f"--{flag}",
        action="append" if repeated else "store",
        type=Path if is_path else _TYPES[kind["type"]],
        choices=kind.get("enum"),
        metavar=None if "enum" in kind else _metavar(kind["type"], is_path=is_path),
        help=words,
    )


def _metavar(kind: str, *, is_path: bool) -> str:
    return "PATH" if is_path else "TEXT" if kind in ("string", "array") else "N"
