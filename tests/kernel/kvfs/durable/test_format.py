"""The file: what is written is read, and what is broken, foreign or hostile is refused."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save
from symphony_kernel.kvfs.durable.format import (
    Content,
    FormatError,
    Identity,
    Label,
    OtherModelError,
    read,
    read_entries,
    read_label,
    read_upload,
    write,
)
from symphony_kernel.kvfs.lineage.packing import unpack

LAYOUT = "layers=2,page_tokens=16,kv_heads=3,head_dim=4"
IDENTITY = Identity("tiny", "abc", "float32", LAYOUT, vocab_size=100, max_context=64)
BFLOAT16 = Identity("tiny", "abc", "bfloat16", LAYOUT, vocab_size=100, max_context=64)


def make_content(entries: int = 21, kv: bool = True, dtype: str = "float32") -> Content:
    tokens = (np.arange(entries) % 100).astype(np.uint32)
    pages = (entries + 15) // 16
    made = np.random.default_rng(7).random((2, 2, pages, 16, 3, 4)).astype(np.float32)
    if dtype == "bfloat16":
        made = (made.view(np.uint32) >> 16).astype(np.uint16)
    return Content(tokens, np.arange(entries, dtype=np.int32), entries, b"", made if kv else None)


def make_file(path: Path, **given: Any) -> Path:
    write(path, Label("t", "a/b", 21), IDENTITY, make_content(**given))
    return path


def same(left: Content, right: Content) -> bool:
    return (
        np.array_equal(left.tokens, right.tokens)
        and np.array_equal(left.positions, right.positions)
        and (left.plain, left.lineage) == (right.plain, right.lineage)
    )


@pytest.mark.parametrize("identity", [IDENTITY, BFLOAT16])
@pytest.mark.parametrize("entries", [0, 1, 16, 21])
def test_written_file_is_read_back(tmp_path: Path, identity: Identity, entries: int) -> None:
    content = make_content(entries, dtype=identity.dtype)
    label = Label("tenant", "ä/b", entries, public=True, expires_ms=12)
    write(tmp_path / "f", label, identity, content)
    assert read_label(tmp_path / "f") == label
    found = read(tmp_path / "f", identity)
    assert same(found, content)
    assert found.kv is not None
    assert content.kv is not None
    assert np.array_equal(found.kv, content.kv)
    assert found.kv.dtype == content.kv.dtype


@pytest.mark.parametrize(
    ("start", "count", "found"),
    [(0, 5, range(5)), (18, 9, range(18, 21)), (21, 4, ()), (99, 4, ())],
)
def test_part_of_the_entries_is_read_alone(
    tmp_path: Path, start: int, count: int, found: Any
) -> None:
    tokens, positions = read_entries(make_file(tmp_path / "f"), start, count)
    assert tokens.tolist() == positions.tolist() == list(found)


def test_part_of_a_file_that_is_no_file_of_this_server_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(save({"tokens": np.arange(3, dtype=np.uint32)}))
    with pytest.raises(FormatError):
        read_entries(tmp_path / "f", 0, 2)


def test_slots_behind_the_last_entry_are_not_written(tmp_path: Path) -> None:
    content = make_content(21)
    assert content.kv is not None
    assert content.kv[:, :, 1, 5:].any()
    write(tmp_path / "f", Label("t", "p", 21), IDENTITY, content)
    stored = load_file(tmp_path / "f")["kv"]
    assert not stored[:, :, 1, 5:].any()
    assert stored[:, :, 1, :5].all()


def test_lineage_and_plain_count_are_kept(tmp_path: Path) -> None:
    whole = make_content(kv=False)
    content = Content(whole.tokens, whole.positions + 3, 0, b"\0how it came\xff")
    write(tmp_path / "f", Label("t", "p", 21), IDENTITY, content)
    assert same(read(tmp_path / "f", IDENTITY), content)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Identity("large", "abc", "float32", LAYOUT, 100, 64), "another model"),
        (Identity("tiny", "abd", "float32", LAYOUT, 100, 64), "another model"),
        (BFLOAT16, "another dtype"),
        (Identity("tiny", "abc", "float32", "layers=9", 100, 64), "another page layout"),
    ],
)
def test_kv_of_another_model_is_not_used(tmp_path: Path, other: Identity, words: str) -> None:
    path = make_file(tmp_path / "f")
    ours = read(path, other)
    assert ours.kv is None
    assert same(ours, make_content())
    with pytest.raises(OtherModelError, match=words):
        read_upload(path, other, b"")
    rebuilt = read_upload(path, other, b"", recompute=True)
    assert rebuilt.kv is None
    assert same(rebuilt, make_content())


def test_tokens_outside_the_model_are_refused(tmp_path: Path) -> None:
    path = make_file(tmp_path / "f")
    for small in (
        Identity("tiny", "abc", "float32", LAYOUT, vocab_size=20, max_context=64),
        Identity("tiny", "abc", "float32", LAYOUT, vocab_size=100, max_context=20),
    ):
        with pytest.raises(FormatError):
            read(path, small)


@pytest.mark.parametrize("kv", [True, False])
def test_changed_byte_is_always_detected(tmp_path: Path, kv: bool) -> None:
    """Every byte of the tensors, and of what the metadata says, is covered by a digest.

    Except for the seal: a wrong one counts as none.
    """
    path = make_file(tmp_path / "f", kv=kv)
    whole = path.read_bytes()
    places = np.random.default_rng(1).integers(0, len(whole), 200).tolist()
    seal = whole.index(b'"seal"')
    for place in {*places, 0, 8, len(whole) - 1} - {*range(seal, seal + 73)}:
        broken = bytearray(whole)
        broken[place] ^= 0x55
        path.write_bytes(broken)
        with pytest.raises(FormatError):
            assert read_label(path).path != read(path, IDENTITY).lineage.decode()


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    path = make_file(tmp_path / "f")
    whole = path.read_bytes()
    for length in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            read(path, IDENTITY)


def file_of(header: Any, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


TOKENS = {"dtype": "U32", "shape": [2], "data_offsets": [0, 8]}
POSITIONS = {"dtype": "I32", "shape": [2], "data_offsets": [8, 16]}
BODY = bytes(16)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 1 << 62) + b"{}",
        file_of(b"[" * 60_000, b""),
        file_of({}, b""),
        file_of({"tokens": TOKENS}, bytes(8)),
        file_of({"tokens": TOKENS | {"dtype": "F32"}, "positions": POSITIONS}, BODY),
        file_of({"tokens": TOKENS | {"shape": [1 << 40]}, "positions": POSITIONS}, BODY),
        file_of({"tokens": TOKENS | {"shape": [-2]}, "positions": POSITIONS}, BODY),
        file_of({"tokens": TOKENS | {"shape": [1, 2]}, "positions": POSITIONS}, BODY),
        file_of({"tokens": TOKENS | {"data_offsets": [0, 1 << 40]}, "positions": POSITIONS}, BODY),
        file_of({"tokens": TOKENS, "positions": POSITIONS | {"data_offsets": [0, 8]}}, BODY),
        file_of({"tokens": TOKENS, "positions": POSITIONS, "__metadata__": {"plain": "3"}}, BODY),
        file_of({"tokens": TOKENS, "positions": POSITIONS, "__metadata__": {"plain": "-1"}}, BODY),
        file_of({"tokens": TOKENS, "positions": POSITIONS, "__metadata__": {"plain": 1}}, BODY),
        file_of({"tokens": TOKENS, "positions": POSITIONS, "__metadata__": []}, BODY),
        file_of({"tokens": ["U32", [2], [0, 8]], "positions": POSITIONS}, BODY),
        file_of({"tokens": TOKENS | {"dtype": {"U32": None}}, "positions": POSITIONS}, BODY),
        file_of(
            b'{"tokens":{"dtype":"U32","shape":[1000000],"data_offsets":[0,4000000]},'
            b'"tokens":{"dtype":"U32","shape":[2],"data_offsets":[0,8]},'
            b'"positions":{"dtype":"I32","shape":[2],"data_offsets":[8,16]}}',
            BODY[:-1],
        ),
    ],
)
def test_malformed_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(data)
    with pytest.raises(FormatError):
        read_upload(path, IDENTITY, b"", recompute=True)


def test_file_of_tokens_alone_is_accepted_for_recompute(tmp_path: Path) -> None:
    tokens, positions = np.array([5, 6], np.uint32), np.array([0, 1], np.int32)
    (tmp_path / "f").write_bytes(save({"tokens": tokens, "positions": positions}))
    found = read_upload(tmp_path / "f", IDENTITY, b"", recompute=True)
    assert (found.tokens.tolist(), found.plain) == ([5, 6], 2)
    with pytest.raises(FormatError):
        read_label(tmp_path / "f")
    with pytest.raises(OtherModelError):
        read_upload(tmp_path / "f", IDENTITY, b"")
    (tmp_path / "f").write_bytes(save({"tokens": tokens, "positions": positions + 1}))
    found = read_upload(tmp_path / "f", IDENTITY, b"", recompute=True)
    assert (found.tokens.tolist(), found.positions.tolist()) == ([5, 6], [1, 2])
    assert (found.plain, found.lineage) == (0, b"")


def test_null_metadata_is_as_none(tmp_path: Path) -> None:
    header = {"__metadata__": None, "tokens": TOKENS, "positions": POSITIONS}
    (tmp_path / "f").write_bytes(file_of(header, BODY))
    assert len(read_upload(tmp_path / "f", IDENTITY, b"", recompute=True).tokens) == 2
    with pytest.raises(OtherModelError):
        read_upload(tmp_path / "f", IDENTITY, b"")


def test_unsealed_upload_is_trusted_for_its_tokens_only(tmp_path: Path) -> None:
    """A file with K and V from elsewhere can be used, but nothing is derived from it."""
    whole = make_content()
    content = Content(whole.tokens, whole.positions, 4, b"how", whole.kv)
    write(tmp_path / "f", Label("t", "p", 21), IDENTITY, content, b"our key")
    assert same(read_upload(tmp_path / "f", IDENTITY, b"our key"), content)
    theirs = read_upload(tmp_path / "f", IDENTITY, b"another key")
    assert theirs.plain == 0
    (trail,) = unpack(theirs.lineage)
    assert trail is not None
    assert trail.span.lost
    assert theirs.kv is not None
    bare = Content(whole.tokens, whole.positions, 21)
    write(tmp_path / "f", Label("t", "p", 21), IDENTITY, bare, b"our key")
    assert same(read_upload(tmp_path / "f", IDENTITY, b"our key"), bare)
    with pytest.raises(FormatError, match="no K and V"):
        read_upload(tmp_path / "f", IDENTITY, b"another key")


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(tmp_path_factory: Any, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "f"
    path.write_bytes(data)
    with pytest.raises(FormatError):
        read_upload(path, IDENTITY, b"", recompute=True)
    with pytest.raises(FormatError):
        read_label(path)
