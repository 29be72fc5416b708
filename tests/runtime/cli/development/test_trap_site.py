"""A failure's place is shown from the project's own files, and from no others."""

from pathlib import Path

import pytest
from symphony_runtime.cli.development.trap_site import show_site


def test_site_shows_the_lines_around_the_first_place_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "lib.rs").write_text("".join(f"line {n}\n" for n in range(1, 9)))
    shown = show_site("panicked at ~lib/rt.ts:1, src/lib.rs:4:5", tmp_path)
    assert shown.splitlines() == [
        "src/lib.rs:4", "      2 | line 2", "      3 | line 3", ">     4 | line 4",
        "      5 | line 5", "      6 | line 6",
    ]  # fmt: skip


@pytest.mark.parametrize("words", ["", "at ../secret.txt:1", "at /etc/passwd.txt:1", "no.rs:1"])
def test_site_of_a_file_outside_the_project_is_not_shown(words: str, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    project = tmp_path / "project"
    project.mkdir()
    assert show_site(words.replace("/etc/passwd", str(tmp_path / "secret")), project) == ""
