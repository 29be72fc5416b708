"""Changes of a project's files are seen, and those of compilers and editors are not."""

import asyncio
import os
from pathlib import Path

from symphony_runtime.cli.development.watching import Watch


async def test_watch_names_files_that_were_written_made_and_removed(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    old, gone = tmp_path / "src" / "lib.rs", tmp_path / "gone.rs"
    for path in (old, gone):
        path.write_text("a")
    watch = Watch(tmp_path)
    old.write_text("other words")
    gone.unlink()
    (tmp_path / "new.rs").write_text("b")
    assert await watch.wait_for_change() == ["gone.rs", "new.rs", "src/lib.rs"]
    old.write_text("other wordz")  # of the same size
    os.utime(old, ns=(1, 1))
    assert await watch.wait_for_change() == ["src/lib.rs"]


async def test_watch_ignores_builds_hidden_files_backups_and_pages(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    for folder in ("target", "build", "node_modules", "vendor", ".git"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("a")
    for name in (".swp", "lib.rs~", "README.md"):
        (tmp_path / name).write_text("a")
    waiting = asyncio.create_task(watch.wait_for_change())
    assert await asyncio.wait([waiting], timeout=0.15) == (set(), {waiting})
    waiting.cancel()
