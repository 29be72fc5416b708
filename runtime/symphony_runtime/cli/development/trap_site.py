"""The place in the author's source that a trap's reason or a panic's log line names."""

import re
from pathlib import Path

_PLACE = re.compile(r"([\w./-]+\.\w{1,5}):(\d+)")
_PYTHON_PLACE = re.compile(r'File "([\w./-]+)", line (\d+)')
_LINES_AROUND = 2
_SOURCE_BYTES_MAX = 1 << 20


def show_site(words: str, directory: Path) -> str:
    """Return the lines around the first place in `words` that is a file of the project, or "".

    The text is of a program: only files below the project's folder are read.
    """
    root = directory.resolve()
    # Python's traceback ends with the place of the failure, all others begin with it.
    for path, line in [*reversed(_PYTHON_PLACE.findall(words)), *_PLACE.findall(words)]:
        file = (root / path).resolve()
        if file.is_relative_to(root) and file.is_file() and file.stat().st_size < _SOURCE_BYTES_MAX:
            return _excerpt(file, f"{file.relative_to(root)}:{line}", int(line))
    return ""


def _excerpt(file: Path, place: str, line: int) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    first = max(line - _LINES_AROUND, 1)
    shown = [
        f"{'>' if number == line else ' '} {number:5} | {text}"
        for number, text in enumerate(lines[first - 1 : line + _LINES_AROUND], first)
    ]
    return "\n".join([place, *shown])
