"""The table of languages: how a project of each is built.

A language module of the server runs source: such a project is a file `main.js` or `main.py`, and
nothing is built.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from symphony_runtime.cli import projects
from symphony_runtime.cli.development.system_languages import build_c, build_zig
from symphony_runtime.cli.project_settings import FILE, manifest_text
from symphony_runtime.cli.projects import ProjectError, RunCompiler
from symphony_runtime.languages.language import SHIPPED, WASM_TYPE
from symphony_runtime.languages.language import Language as SourceLanguage

Say = Callable[[str], object]


class Build(Protocol):
    """Makes a project's program; returns its file. Raises ProjectError in words of its compiler."""

    def __call__(self, directory: Path, say: Say, *, quick: bool, run: RunCompiler) -> Path: ...


@dataclass(frozen=True, slots=True)
class Language:
    """A row: `marks` are files, one of which every project of the language has."""

    name: str
    marks: tuple[str, ...]
    build: Build
    content_type: str = WASM_TYPE  # of what is uploaded
    source: bool = False  # the server runs what the author wrote

    def file(self, directory: Path) -> str:
        """Return the mark that a project has."""
        return next(mark for mark in self.marks if (directory / mark).is_file())


def _of_source(language: SourceLanguage) -> Language:
    marks = tuple(f"main{suffix}" for suffix in language.suffixes)

    def build(directory: Path, say: Say, *, quick: bool, run: RunCompiler) -> Path:  # noqa: ARG001
        path = directory / made.file(directory)
        if manifest_text(directory) is not None:
            raise ProjectError(
                f"the manifest of {path.name} is its first comment: move the description and the "
                f"schemas of {FILE} or manifest.json there"
            )
        return path

    made = Language(language.name, marks, build, language.content_types[0], source=True)
    return made


LANGUAGES = (
    Language("rust", ("Cargo.toml",), projects.build),
    Language("assemblyscript", ("asconfig.json", "package.json"), projects.build),
    Language("c", ("main.c",), build_c),
    Language("zig", ("main.zig",), build_zig),
    *map(_of_source, SHIPPED),
)


def language_of(directory: Path) -> Language:
    """Return the language of a project; ProjectError: the folder holds none."""
    for language in LANGUAGES:
        if any((directory / mark).is_file() for mark in language.marks):
            return language
    marks = ", ".join(mark for language in LANGUAGES for mark in language.marks)
    raise ProjectError(f"{directory} is no project: it holds none of {marks}")
