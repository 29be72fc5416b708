"""The stored form of a source program, and where its manifest is found."""

import time

import pytest
from symphony_runtime.languages.source import find_manifest, is_source, pack_source, unpack_source

LINEAR_SECONDS_MAX = 1.0  # for what takes a few milliseconds


def test_source_is_unpacked_as_it_was_packed() -> None:
    body = pack_source("toy", b"a\nb")
    assert is_source(body)
    assert unpack_source(body) == ("toy", b"a\nb")
    assert unpack_source(b"\0asm") is None
    assert is_source(b"\0source \xff\n")


@pytest.mark.parametrize(
    ("text", "manifest"),
    [
        (b"#!/usr/bin/env js\n\n // a\n\t// b\n/* symphony: {} */ x", b"{}"),
        (b"/*symphony:{\n}*/", b"{\n}"),
        (b"x /* symphony: {} */", b""),
        (b"// symphony: {}\nx", b""),
        (b"/* other */ /* symphony: {} */", b""),
        (b"// no end", b""),
        (b"", b""),
    ],
)
def test_manifest_stands_before_the_first_statement(text: bytes, manifest: bytes) -> None:
    assert find_manifest(text, "") == manifest


@pytest.mark.parametrize("piece", [b"\n", b" ", b"\n ", b"//\n", b"\n//\n", b"#!\n", b"/*"])
@pytest.mark.parametrize("end", [b"", b"x", b"/*", b"//", b"/* symphony:"])
@pytest.mark.parametrize("comment", ["", "#"])
def test_time_to_find_it_is_linear(piece: bytes, end: bytes, comment: str) -> None:
    began = time.thread_time()
    assert find_manifest(piece * 10_000 + end, comment) == b""
    assert time.thread_time() - began < LINEAR_SECONDS_MAX
