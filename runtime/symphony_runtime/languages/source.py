"""A stored source program, and the manifest in its first comment.

    stored: b"\\0source javascript\\n" + the source as uploaded

Its SHA-256 is the program's id. No WebAssembly module begins so. The manifest is JSON:

    /* symphony: {"description": "...", "permissions": ["http"]} */       JavaScript
    # symphony: {"description": "..."}                                    Python, on any lines
"""

import re
from typing import Final, NamedTuple

_HEAD: Final = b"\0source "
# They may stand before a manifest: blank lines, line comments and a #! line. Each is found once, in
# a loop, since a regular expression of any number of them could take time without bounds.
_BEFORE: Final = re.compile(rb"\s+|//[^\n]*\n|#![^\n]*\n")
_BLOCK: Final = re.compile(rb"/\*\s*symphony:(.*?)\*/", re.DOTALL)


class Source(NamedTuple):
    """A source program: the name of its language, and its text."""

    language: str
    text: bytes


def pack_source(language: str, text: bytes) -> bytes:
    """Return a source program as it is stored."""
    return _HEAD + language.encode() + b"\n" + text


def is_source(body: bytes) -> bool:
    """Return whether bytes begin as a stored source program; they may be malformed."""
    return body.startswith(_HEAD)


def unpack_source(body: bytes) -> Source | None:
    """Return a stored source program; None: it is a module."""
    if not is_source(body):
        return None
    language, _, text = body[len(_HEAD) :].partition(b"\n")
    return Source(language.decode(), text)


def find_manifest(text: bytes, comment: str) -> bytes:
    """Return the JSON of a source's manifest, b"" without one.

    `comment` is as in `Language`. Only comments stand before a manifest.
    """
    if not comment:
        position = 0
        while skipped := _BEFORE.match(text, position):
            position = skipped.end()
        found = _BLOCK.match(text, position)
        return found[1].strip() if found else b""
    mark, lines = comment.encode(), iter(text.splitlines())
    for line in lines:
        begin = line.strip()
        if begin and not begin.startswith(mark):
            return b""
        if begin[len(mark) :].lstrip().startswith(b"symphony:"):
            parts = [begin.partition(b"symphony:")[2]]
            for following in lines:
                if not following.strip().startswith(mark):
                    break
                parts.append(following.strip()[len(mark) :])
            return b"\n".join(parts).strip()
    return b""
