"""A program's manifest: what it says of itself, in the custom section `symphony.manifest`.

    {"description": "...", "input_schema": {...}, "output_schema": {...}}

Each member may be left out. The schemas keep to `json_schema`. A source program has its manifest in
a comment, and may add `"permissions": ["http", "tool"]`; a module's imports are its permissions.
"""

import json
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, Final

from symphony_kernel.protocol.limits import PROGRAM_MANIFEST_BYTES_MAX

from symphony_runtime.bounded_json import DeepJsonError, load_json
from symphony_runtime.compiler.json_schema import schema_problems
from symphony_runtime.compiler.module_outline import (
    CUSTOM,
    HEADER,
    read_custom,
    read_sections,
    read_text,
    write_custom,
)

SECTION: Final = "symphony.manifest"
_SCHEMAS = ("input_schema", "output_schema")
_MEMBERS = ("description", *_SCHEMAS)
PERMISSIONS: Final = "permissions"
_PROBLEMS_SHOWN = 10


def read_manifest(wasm: bytes) -> tuple[str, list[str]]:
    """Return the manifest of a valid module as compact JSON ("" without one), and its problems."""
    content = read_custom(wasm, SECTION)
    return check_manifest(content) if content else ("", [])


def check_manifest(content: bytes, permissions: Collection[str] = ()) -> tuple[str, list[str]]:
    """Return a manifest as compact JSON, and the first of its problems.

    `permissions`: those that it may list.
    """
    if len(content) > PROGRAM_MANIFEST_BYTES_MAX:
        size = f"{len(content)} bytes; the limit is {PROGRAM_MANIFEST_BYTES_MAX}"
        return "", [f"the manifest has {size}"]
    try:
        manifest = load_json(content)
        # No infinity and no lone surrogate, which JSON in UTF-8 cannot say.
        text = json.dumps(manifest, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except DeepJsonError as error:
        return "", [f"the manifest {error}"]
    except ValueError as error:
        return "", [f"the manifest is not JSON: {error}"]
    if not isinstance(manifest, dict):
        return "", ["the manifest must be an object"]
    found = list(islice(_problems(manifest, permissions), _PROBLEMS_SHOWN))
    return ("", [f"the manifest: {each}" for each in found]) if found else (text, [])


def _problems(manifest: dict[str, Any], permissions: Collection[str]) -> Iterator[str]:
    members = (*_MEMBERS, PERMISSIONS) if permissions else _MEMBERS
    for member, value in manifest.items():
        if member not in members:
            yield f"`{member}` is unknown; there are {', '.join(members)}"
        elif member == PERMISSIONS:
            if not isinstance(value, list) or not all(each in permissions for each in value):
                yield f"`{member}` must be a list of {', '.join(sorted(permissions))}"
        elif member in _SCHEMAS:
            yield from schema_problems(value, member)
        elif not isinstance(value, str):
            yield f"`{member}` must be a string"


def with_manifest(wasm: bytes, content: bytes) -> bytes:
    """Return a module with this manifest instead of the one that it may have.

    Raises ValueError: it is no module.
    """
    if not wasm.startswith(HEADER):
        raise ValueError("it is not a WebAssembly module")
    kept, begin = HEADER, len(HEADER)
    for section, at, size in read_sections(wasm):
        if section != CUSTOM or read_text(wasm, at)[0] != SECTION:
            kept += wasm[begin : at + size]  # byte by byte: others know places in the module
        begin = at + size
    return kept + write_custom(SECTION, content)
