"""The committed module of JavaScript, and sources as they are stored."""

import hashlib
import json

import pytest
from symphony_runtime.compiler.module_outline import read_outline
from symphony_runtime.languages.source import find_manifest, pack_source, unpack_source

from tools.language_modules import RECORD, WASM, source_hash

REBUILD = "run `make language-modules`"


def test_committed_module_is_the_recorded_one() -> None:
    recorded = json.loads(RECORD.read_text())
    assert source_hash() == recorded["source"], f"the source has changed: {REBUILD}"
    assert hashlib.sha256(WASM.read_bytes()).hexdigest() == recorded["wasm"], REBUILD
    assert len(WASM.read_bytes()) < 1 << 20
    assert not read_outline(WASM.read_bytes()).problems()


def test_stored_source_is_no_module_and_names_its_language() -> None:
    stored = pack_source("javascript", b"a\nb")
    assert unpack_source(stored) == ("javascript", b"a\nb")
    assert unpack_source(b"\0asm\1\0\0\0") is None


@pytest.mark.parametrize(
    ("text", "comment", "found"),
    [
        (b'/* symphony: {"a": 1} */', "", b'{"a": 1}'),
        (b"#! x\n// y\n\n/* symphony:\n{}\n*/ z", "", b"{}"),
        (b"let a; /* symphony: {} */", "", b""),
        (b'# symphony: {"a":\n#  1}\nx', "#", b'{"a":\n  1}'),
        (b"# other\n\n# symphony: {}", "#", b"{}"),
        (b"import x\n# symphony: {}", "#", b""),
        (b"/" * 100_000, "", b""),
    ],
)
def test_manifest_is_the_first_comment_that_names_it(
    text: bytes, comment: str, found: bytes
) -> None:
    assert find_manifest(text, comment) == found
