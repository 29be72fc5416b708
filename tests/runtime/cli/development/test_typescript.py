"""TypeScript: without the package that strips types, its user reads what to install."""

from pathlib import Path

import pytest
from symphony_runtime.cli.development.typescript import TypeScriptError, strip_types


def test_missing_node_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.ts").write_text("let a: number = 1;")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TypeScriptError, match="needs Node"):
        strip_types(tmp_path / "a.ts")


def test_package_is_asked_for_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "project" / "src" / "a.ts"
    source.parent.mkdir(parents=True)
    source.write_text("let a: number = 1;")
    monkeypatch.chdir(tmp_path / "project")
    with pytest.raises(TypeScriptError, match="npm install amaro"):
        strip_types(source)
    others = tmp_path / "node_modules" / "amaro"  # above the project: anybody's
    others.mkdir(parents=True)
    (others / "index.js").write_text("process.exit(7);")
    with pytest.raises(TypeScriptError, match="npm install amaro"):
        strip_types(source)
    package = tmp_path / "project" / "node_modules" / "amaro"
    package.mkdir(parents=True)
    (package / "index.js").write_text(
        "exports.transformSync = (text, options) => {"
        " if (text.includes('enum')) throw new Error('no enum');"
        " return { code: options.mode + text.replace(': number', '        ') }; };"
    )
    assert strip_types(source) == b"strip-onlylet a         = 1;"
    source.write_text("enum A {}")
    with pytest.raises(TypeScriptError, match="no enum"):
        strip_types(source)
