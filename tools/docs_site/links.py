"""Links of pages, which are written for the repository, rewritten for the site.

A page's links are relative to its place in the repository. A link to a file that has a page
becomes a link to that page. A link to any other file of the repository becomes its text, as code,
with the file's path as its title: the project has no public address to link to.
"""

import html
import os.path
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs"
_CODE = r"(?P<code>^```.*?^```[^\n]*$|``.+?``|`[^`\n]+`)"
_LINK = r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)"
_CODE_OR_LINK = re.compile(f"{_LINK}|{_CODE}", re.MULTILINE | re.DOTALL)
_ELSEWHERE = re.compile(r"[a-z]+:|#|/")


class MissingError(Exception):
    """A link to a file that is not in the repository."""


def rewrite_links(text: str, source: str, page: str, pages: Mapping[str, str]) -> str:
    """Return a page's Markdown with the links that the site can follow.

    `source` is the file that the text is from, relative to the repository, and `page` the page's
    place in the site. `pages` maps files of the repository to places in the site. MissingError.
    """

    def replace(found: re.Match[str]) -> str:
        target = found.group("target")
        if target is None or _ELSEWHERE.match(target):
            return found.group()
        name, _, anchor = target.partition("#")
        path = os.path.normpath(Path(source).parent / name)
        place = place_of(path, pages)
        if place is not None:
            link = os.path.relpath(place, Path(page).parent)
            suffix = f"#{anchor}" if anchor else ""
            return f"{found.group('image')}[{found.group('text')}]({link}{suffix})"
        if not (ROOT / path).exists():
            raise MissingError(f"{source}: {target}")
        words = html.escape(found.group("text").strip("`"))
        return f'<code title="{html.escape(path)}">{words}</code>'

    return _CODE_OR_LINK.sub(replace, text)


def place_of(path: str, pages: Mapping[str, str]) -> str | None:
    """Return the place in the site of a file or a folder of the repository, or None."""
    inside = os.path.relpath(path, DOCS)
    if not inside.startswith("..") and (ROOT / path).is_file():
        return inside
    return pages.get(path) or pages.get(f"{path}/README.md")
