"""The source of a function's program, and the version that is its digest.

Its program is the module that it is defined in, from the first line to the last: imports, helpers
and types are there.
"""

import hashlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# A server reads a manifest from the comments that a source begins with.
_MANIFEST = re.compile(r"\A(?:\s*#[^\n]*\n)*?\s*#\s*symphony:")


def source_of(function: Callable[..., Any]) -> str:
    """Return the source of a function's program; OSError: there is none, as at a prompt.

    In a notebook, where there is no module's file, it is the function's own source.
    """
    file = inspect.getsourcefile(function)
    if file is not None and Path(file).is_file():
        return Path(file).read_text(encoding="utf-8")
    return textwrap.dedent(inspect.getsource(function))


def version_of(source: str) -> str:
    """Return a version: the SHA-256 of a source, as the server's ids have it."""
    return f"sha256:{hashlib.sha256(source.encode()).hexdigest()}"


def with_manifest(source: str, manifest: Mapping[str, Any]) -> str:
    """Return a source with a manifest in its first line, unless it has one of its own."""
    if _MANIFEST.match(source):
        return source
    return f"# symphony: {json.dumps(dict(manifest))}\n{source}"
