"""The docs site builds without a warning, its links lead somewhere, and its pages render."""

import contextlib
import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.browser import find_browser, open_tab
from tests.support.requirements import requires
from tools.diagrams.drawn import drawn_diagrams

ROOT = Path(__file__).resolve().parents[1]
RUSTDOC = "reference/rustdoc"  # made by cargo: it answers for its own links
# Attributes that make a browser load something.
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"),
          ("object", "data"), ("video", "src"), ("image", "href"), ("use", "href")}  # fmt: skip
LOADED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "prefetch", "manifest"}
CSS_URL = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


class Reader(HTMLParser):
    """The ids, the links and the loaded addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and set(values.get("rel", "").split()) & LOADED_LINKS:
            self.loaded.append(values["href"])
        self.loaded += [values[name] for name in values if (tag, name) in LOADED]


def pages_of(site: Path) -> list[Path]:
    return sorted(
        page for page in site.rglob("*.html")
        if not page.relative_to(site).as_posix().startswith(RUSTDOC)
    )  # fmt: skip


def broken_links(site: Path) -> list[str]:
    """Return each link of a page that leads to no page, or to no place in it."""
    read = functools.cache(lambda path: Reader(path.read_text()))
    found = []
    for page in pages_of(site):
        for link in read(page).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            base = site if parts.path.startswith("/") else page.parent
            target = (base / unquote(parts.path).lstrip("/")) if parts.path else page
            target = target.resolve()
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and anchor not in read(target).ids):
                found.append(f"{page.relative_to(site)}: {link}")
    return found


def foreign_addresses(site: Path) -> list[str]:
    """Return what a page or a style sheet would load from another host."""
    found = []
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = path.read_text()
        loaded = [one or other for one, other in CSS_URL.findall(text)]
        if path.suffix == ".html":
            loaded += Reader(text).loaded
        found += [f"{path}: {each}" for each in loaded if re.match(r"\w+://|//", each)]
    return found


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP; give the address."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_site_has_a_page_for_each_document_and_example(site: Path) -> None:
    documents = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    documents += [
        Path("examples", path.parent.name) for path in (ROOT / "examples").glob("*/README.md")
    ]
    assert len(documents) > 40
    assert [each for each in documents if not (site / each).with_suffix(".html").is_file()] == []


def test_site_links_lead_to_pages_and_places(site: Path) -> None:
    assert broken_links(site) == []


def test_site_loads_nothing_from_another_host(site: Path) -> None:
    assert foreign_addresses(site) == []


def test_site_checks_find_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="a.html#here"></a><a href="#there"></a><a href="b.html"></a>'
        '<script src="https://example.org/x.js"></script><img src="a.svg">'
    )
    (tmp_path / "a.css").write_text('@import "//example.org/x.css"; a { background: url(x.png) }')
    assert broken_links(tmp_path) == ["a.html: #there", "a.html: b.html"]
    assert [each.rpartition(": ")[2] for each in foreign_addresses(tmp_path)] == [
        "https://example.org/x.js",
        "//example.org/x.css",
    ]


@pytest.mark.slow
@requires("chromium", find_browser() is not None, "no Chromium is installed here")
async def test_site_pages_render_in_chromium_without_an_error(site: Path, tmp_path: Path) -> None:
    program = find_browser()
    assert program is not None
    wrong = []
    with served(site) as address:
        async with open_tab(program, tmp_path) as tab:
            for page in pages_of(site):
                name = page.relative_to(site).as_posix()
                await tab.open(f"{address}/{name}")
                blank = await tab.evaluate(
                    "Promise.all([...document.images].map(i => i.decode().then(() => '', "
                    "() => i.src))).then(all => all.filter(Boolean))"
                )
                shown = await tab.evaluate("document.querySelector('h1')?.innerText ?? ''")
                wrong += [(name, "a picture that does not show", each) for each in blank]
                wrong += [(name, "no heading", "")] if not shown else []
                wrong += [(name, "failed", e["errorText"]) for e in tab.of("Network.loadingFailed")]
                wrong += [(name, "exception", e) for e in tab.of("Runtime.exceptionThrown")]
                for each in tab.of("Log.entryAdded"):
                    if each["entry"]["level"] == "error":
                        wrong.append((name, "logged", each["entry"]["text"]))
                for each in tab.of("Runtime.consoleAPICalled"):
                    if each["type"] in ("error", "assert"):
                        wrong.append((name, "console", each["args"]))
                for each in tab.of("Network.requestWillBeSent"):
                    url = each["request"]["url"]
                    if not url.startswith((address, "data:", "blob:")):
                        wrong.append((name, "asked another host", url))
    assert wrong == []


@pytest.mark.parametrize("path", drawn_diagrams(), ids=lambda path: path.name)
def test_diagram_is_current(path: Path) -> None:
    assert path.read_text() == drawn_diagrams()[path], "run `make diagrams`"
