"""The settings of a model: files of a folder, or what a GGUF file says in their place.

Everything but the tensors is read through `ModelFiles`, by the names that the files have in
Hugging Face's layout.
"""

from pathlib import Path
from typing import Any, Protocol

from symphony_kernel.executor.models.file_reader import (
    SETTINGS_BYTES_MAX,
    CheckpointError,
    parse_json,
    read_optional,
)
from symphony_kernel.executor.models.gguf.container import is_gguf
from symphony_kernel.executor.models.gguf.settings import GgufSettings


class ModelFiles(Protocol):
    """The files of a model by name, such as config.json. `path` is the folder or the file."""

    path: Path

    def where(self, name: str) -> Path:
        """Return a file's path, for messages."""

    def read(self, name: str, bytes_max: int = SETTINGS_BYTES_MAX) -> bytes | None:
        """Return a file's content, None if there is no file; CheckpointError."""

    def weights(self) -> list[Path]:
        """Return the files with the tensors, in order."""


class _Folder:
    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise CheckpointError(f"{path} is not a directory, and not a file named *.gguf")
        self.path = path

    def where(self, name: str) -> Path:
        return self.path / name

    def read(self, name: str, bytes_max: int = SETTINGS_BYTES_MAX) -> bytes | None:
        return read_optional(self.where(name), bytes_max)

    def weights(self) -> list[Path]:
        return sorted(path for path in self.path.glob("*.safetensors") if path.is_file())


def open_model(path: Path) -> ModelFiles:
    """Return the files of a folder or of a GGUF file; CheckpointError."""
    return GgufSettings(path) if is_gguf(path) else _Folder(path)


def required(files: ModelFiles, name: str, bytes_max: int = SETTINGS_BYTES_MAX) -> bytes:
    """Return a file's content; a missing file is a `CheckpointError`, too."""
    found = files.read(name, bytes_max)
    if found is None:
        raise CheckpointError(f"{files.where(name)} is missing")
    return found


def optional_json(files: ModelFiles, name: str) -> dict[str, Any]:
    """Return the JSON object in a file, {} if there is no file; CheckpointError."""
    found = files.read(name)
    return {} if found is None else parse_json(files.where(name), found)
