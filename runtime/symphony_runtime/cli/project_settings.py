"""A project's settings: its file `symphony.toml`.

[program]
name = "greeter"            # the name to deploy under; else the folder's
description = "..."         # with the schemas: the program's manifest
input = "def main("         # the sample input of `symphony dev`, any value
messages = ["hello"]        # what the sample user then sends
server = "https://..."      # for `symphony deploy`; else as for all commands
limits = { wall_ms = 10000 }
input_schema = { type = "string" }

[serve]                     # options of the server that `dev` and `test` start
model = "tiny"
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field

from symphony_runtime.cli.output import CommandError
from symphony_runtime.validation import StrictModel, check_table

FILE = "symphony.toml"
_MANIFEST = ("description", "input_schema", "output_schema")


class ProgramSettings(StrictModel):
    """The table `program`: how the project's program is called, run and deployed."""

    name: str | None = Field(default=None, min_length=1)
    description: str | None = None
    input: Any = ""
    messages: list[str] = Field(default_factory=list)
    entry: str | None = None
    server: str | None = None
    limits: dict[str, int] = Field(default_factory=dict)
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None

    def manifest(self) -> dict[str, Any]:
        """Return what the program says of itself; empty if nothing is set."""
        values = {name: getattr(self, name) for name in _MANIFEST}
        return {name: value for name, value in values.items() if value is not None}


class Settings(StrictModel):
    """The whole file; `serve` is checked where a server is started."""

    program: ProgramSettings = ProgramSettings()
    serve: dict[str, Any] = Field(default_factory=dict)


def read_settings(directory: Path) -> Settings:
    """Return the settings of a project; all defaults without a file.

    Raises CommandError: the file is no TOML, or a value does not fit.
    """
    path = directory / FILE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        program = check_table(ProgramSettings, table.get("program", {}), f"{path}: program")
        return check_table(Settings, {**table, "program": program}, str(path))
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise CommandError(f"{path}: {error}") from error
    except ValueError as error:
        raise CommandError(str(error)) from error


def manifest_text(directory: Path) -> bytes | None:
    """Return the manifest of a project, of `manifest.json` or its settings; None without one.

    Raises CommandError: both have one, or a file cannot be read.
    """
    own, path = read_settings(directory).program.manifest(), directory / "manifest.json"
    if not path.is_file():
        return json.dumps(own, ensure_ascii=False).encode() if own else None
    if own:
        names = ", ".join(own)
        raise CommandError(f"{path} is the manifest, so {directory / FILE} must not have {names}")
    return path.read_bytes()
