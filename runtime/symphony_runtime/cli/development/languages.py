"""The table of languages: how a project of each is built and tested.

A language whose programs are uploaded as source builds nothing: its `build` returns the source.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from symphony_runtime.cli import projects
from symphony_runtime.cli.development.system_languages import build_c, build_zig
from symphony_runtime.cli.projects import ProjectError, RunCompiler

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


LANGUAGES = (
    Language("rust", ("Cargo.toml",), projects.build),
    Language("assemblyscript", ("asconfig.json", "package.json"), projects.build),
    Language("c", ("main.c",), build_c),
    Language("zig", ("main.zig",), build_zig),
)


def language_of(directory: Path) -> Language:
    """Return the language of a project; ProjectError: the folder holds none."""
    for language in LANGUAGES:
        if any((directory / mark).is_file() for mark in language.marks):
            return language
    marks = ", ".join(mark for language in LANGUAGES for mark in language.marks)
    raise ProjectError(f"{directory} is no project: it holds none of {marks}")
