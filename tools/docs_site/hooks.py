"""The docs site's hooks: MkDocs calls them while it builds (`mkdocs.yml`)."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.docs_site.assemblyscript import assemblyscript_page
from tools.docs_site.examples import example_names, example_page, index_page
from tools.docs_site.http_routes import http_routes_page
from tools.docs_site.links import ROOT, MissingError, rewrite_links

_log = get_plugin_logger("docs_site")
_CRATE = ROOT / "guest_sdk/rust"
_RUSTDOC = "reference/rustdoc"
_ROUTES = "reference/http-routes.md"
# Pages that are files of the repository outside of docs/.
_INCLUDED = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "LICENSE": "project/licence.md",
    "guest_sdk/rust/README.md": "reference/rust-sdk.md",
    "guest_sdk/assemblyscript/README.md": "reference/assemblyscript-sdk.md",
    "benchmarks/README.md": "evaluation/benchmarks.md",
    "tests/hostile/README.md": "project/hostile-tests.md",
    "kernel/symphony_kernel/tiny_model/README.md": "project/tiny-model.md",
}
_sources: dict[str, str] = {}  # page -> the file that it is made from


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made at build time."""
    _sources.clear()
    for source, place, content in _generated_pages():
        _sources[place] = source
        files.append(File.generated(config, place, content=content))
    config.nav = _expand(config.nav or [], [file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite a page's links."""
    place = page.file.src_uri
    pages = {source: made for made, source in _sources.items()} | {"README.md": "index.md"}
    try:
        return rewrite_links(markdown, _sources.get(place, f"docs/{place}"), place, pages)
    except MissingError as error:
        _log.warning("a link to a file that is not there: %s", error)
        return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Add the Rust SDK's own documentation, where cargo is installed."""
    if cargo := shutil.which("cargo"):
        target = ROOT / "build/rustdoc"
        command = [cargo, "doc", "--quiet", "--no-deps", "--offline", "--target-dir", str(target)]
        subprocess.run(command, cwd=_CRATE, check=True)  # noqa: S603 - a command of ours
        shutil.copytree(target / "doc", Path(config.site_dir) / _RUSTDOC, dirs_exist_ok=True)


def _generated_pages() -> Iterator[tuple[str, str, str]]:
    """Yield source, place and Markdown of each page that is made at build time."""
    for source, place in _INCLUDED.items():
        text = (ROOT / source).read_text()
        if source == "LICENSE":
            notice = (ROOT / "NOTICE").read_text()
            text = f"# Licence\n\n```text\n{text}```\n\n## Notice\n\n```text\n{notice}```\n"
        elif place == "reference/rust-sdk.md" and shutil.which("cargo"):
            link = '<a href="rustdoc/symphony/index.html">All types and functions (rustdoc)</a>'
            text = f"{text}\n## Reference\n\n{link}\n"
        elif place == "reference/assemblyscript-sdk.md":
            text = f"{text}\n{assemblyscript_page()}"
        yield source, place, text
    for path in sorted((ROOT / "benchmarks/notebook").glob("*.md")):
        yield (
            f"benchmarks/notebook/{path.name}",
            f"evaluation/notebook-{path.name}",
            path.read_text(),
        )
    yield "examples", "examples/index.md", index_page()
    for name in example_names():
        yield f"examples/{name}/README.md", f"examples/{name}.md", example_page(name)
    yield "runtime/symphony_runtime/gateway/api/routes.py", _ROUTES, http_routes_page()


def _expand(nav: Any, pages: list[str]) -> Any:
    """Return the navigation with each folder replaced by its pages that are not named.

    A named page that is not there is left out: parts of the site are made on branches.
    """
    named = set(_named(nav))

    def items(entry: Any) -> list[Any]:
        if isinstance(entry, dict):
            found = []
            for title, inner in entry.items():
                each = items(inner) if isinstance(inner, str) else expanded(inner)
                if each:
                    single = isinstance(inner, str) and not inner.endswith("/")
                    found.append({title: each[0] if single else each})
            return found
        if entry.endswith("/"):
            return sorted(p for p in pages if p.startswith(entry) and p not in named)
        return [entry] if entry in pages else []

    def expanded(entries: list[Any]) -> list[Any]:
        return [item for entry in entries for item in items(entry)]

    return expanded(nav)


def _named(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for entry in nav if isinstance(nav, list) else ():
        yield from _named(entry)
    for inner in nav.values() if isinstance(nav, dict) else ():
        yield from _named(inner)
