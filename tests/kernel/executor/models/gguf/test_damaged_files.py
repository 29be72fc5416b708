"""Damaged and hostile GGUF files: each is refused in one sentence, soon, and in little memory."""

import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_kernel.executor.models.assets import load_assets
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.gguf.container import read_gguf
from symphony_kernel.executor.models.tensor_headers import check_tensors

from tests.support.executor.gguf_files import write_gguf
from tests.support.executor.models import make_checkpoint
from tests.support.executor.refusals import Check, refused_server

HUGE = (1 << 64) - 1
MEMORY_BYTES_MAX = 32 << 20  # of reading a small file


def text(data: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(data) if size is None else size) + data


def head(tensors: int = 0, pairs: int = 0, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + rest


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + values


def tensor(
    name: bytes = b"t", sizes: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0
) -> bytes:
    shape = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def one(described: bytes, data: int = 64, alignment: bytes = b"") -> bytes:
    return head(1, 1 if alignment else 0, alignment + described) + bytes(64 + data)


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it has 0 bytes"),
    "no magic": (b"GGML" + bytes(60), "it begins with b'GGML', not with b'GGUF'"),
    "old version": (head(version=1) + bytes(8), "its version is 1; 2 and 3 are supported"),
    "big-endian": (head(version=3 << 24) + bytes(8), "(of a big-endian machine)"),
    "many tensors": (head(HUGE) + bytes(8), f"it has {HUGE} tensors; at most 65536"),
    "many values": (head(0, 1 << 40) + bytes(8), "it has 1099511627776 values; at most 65536"),
    "cut before a value": (head(0, 1), "it ends within its head, after 24 bytes"),
    "long key": (head(0, 1, text(b"k", HUGE)), "it ends within its head"),
    "empty key": (head(0, 1, pair(b"", 4, bytes(4))), "value 0 has a name of 0 bytes"),
    "key in other letters": (head(0, 1, pair(b"\xff", 4, bytes(4))), "which is not UTF-8"),
    "key twice": (head(0, 2, pair(b"k", 4, bytes(4)) * 2), "it has 'k' twice"),
    "unknown type": (head(0, 1, pair(b"k", 13, bytes(8))), "'k' has the unknown type 13"),
    "text is not UTF-8": (head(0, 1, pair(b"k", 8, text(b"\xff"))), "value of 'k' is not UTF-8"),
    "long text": (head(0, 1, pair(b"k", 8, text(b"", 1 << 62))), "it ends within its head"),
    # A reader that believes the count appends empty values for ever.
    "array past the end": (head(0, 1, pair(b"k", 9, array(0, 1 << 22))), "ends within its head"),
    "huge array": (head(0, 1, pair(b"k", 9, array(0, HUGE))), "18446744073709551615 elements"),
    "array of texts past the end": (
        head(0, 1, pair(b"k", 9, array(8, 1 << 22, text(b"a")))), "ends within its head",
    ),
    "array of long texts": (
        head(0, 1, pair(b"k", 9, array(8, 2, text(b"", HUGE)))), "ends within its head",
    ),
    "array of arrays": (
        head(0, 1, pair(b"k", 9, array(9, 1, array(9, 1)))), "'k' is an array of arrays",
    ),
    "array of nothing known": (head(0, 1, pair(b"k", 9, array(99, 1))), "the unknown type 99"),
    "no dimensions": (one(tensor(sizes=())), "'t' has 0 dimensions"),
    "many dimensions": (one(tensor(sizes=(1,) * 5)), "'t' has 5 dimensions"),
    "claimed dimensions": (
        head(1, 0, text(b"t") + struct.pack("<I", (1 << 32) - 1)), "'t' has 4294967295 dimensions",
    ),
    "size of nothing": (one(tensor(sizes=(8, 0))), "'t' is F32 of the sizes [8, 0]"),
    "part of a block": (one(tensor(sizes=(40,), kind=2)), "'t' is Q4_0 of the sizes [40]"),
    "sizes overflow": (one(tensor(sizes=(1 << 62,) * 4)), "ends at byte"),
    "unknown block": (one(tensor(kind=4)), "'t' has the unknown type 4"),
    "tensor past the end": (one(tensor(offset=1 << 20)), "'t' ends at byte 1048"),
    "tensor between": (one(tensor(offset=4)), "'t' begins at 4: not at a multiple of 32"),
    "tensors overlap": (
        head(2, 0, tensor(b"a", (64,)) + tensor(b"b", (8,), offset=32)) + bytes(999),
        "'b' begins at 32: not at a multiple of 32, or within another",
    ),
    "tensor twice": (
        head(2, 0, tensor() + tensor(offset=32)) + bytes(999), "it has the tensor 't' twice",
    ),
    **{
        f"alignment {value}": (
            one(tensor(), alignment=pair(b"general.alignment", kind, data)),
            "general.alignment is",
        )
        for value, kind, data in (
            ("zero", 4, bytes(4)), ("three", 4, b"\3\0\0\0"), ("huge", 10, b"\0" * 7 + b"\x80"),
            ("text", 8, text(b"32")), ("one", 7, b"\1"),
        )
    },
    "no architecture": (head() + bytes(64), "general.architecture must be one of llama"),
    "other architecture": (
        head(0, 1, pair(b"general.architecture", 8, text(b"bert"))), "not 'bert'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_damaged_file_is_refused_in_one_sentence(tmp_path: Path, case: str) -> None:
    data, words = FILES[case]
    file = tmp_path / "model.gguf"
    file.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as refused:
            load_config(file)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()
    assert words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


# -- Files of the package's writer with one wrong value --------------------------------------------
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model")).directory


def replaced(key: str, add: Callable[[gguf.GGUFWriter], object]) -> Any:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        add(writer)

    return change


def value(key: str, kind: str, given: Any) -> Any:
    return replaced(key, lambda writer: getattr(writer, f"add_{kind}")(key, given))


PIECES = [bytes((97 + n // 26, 97 + n % 26)) * 100 + b"%d" % (n % 9) for n in range(600)]
VALUES: dict[str, tuple[Any, str]] = {
    "unknown setting": (value("llama.odd", "uint32", 1), "'llama.odd' is not supported"),
    "experts": (value("llama.expert_count", "uint32", 8), "llama.expert_count 8 is not supported"),
    "no heads": (
        value("llama.attention.head_count", "uint32", 0), "num_attention_heads must be a positive",
    ),
    "heads are text": (
        value("llama.attention.head_count", "string", "4"),
        "num_attention_heads must be a positive integer",
    ),
    "heads differ": (
        value("llama.attention.head_count_kv", "array", [1, 2]), "differs from layer to layer",
    ),
    "layers are many": (
        value("llama.block_count", "uint32", (1 << 32) - 1), "num_hidden_layers is 4294967295",
    ),
    "layers are more": (value("llama.block_count", "uint32", 3), "has no tensor model.layers.2"),
    "width differs": (value("llama.embedding_length", "uint32", 96), "has shape (101, 48)"),
    "epsilon is no number": (
        value("llama.attention.layer_norm_rms_epsilon", "float32", float("nan")), "not nan",
    ),
    "epsilon is infinite": (
        value("llama.attention.layer_norm_rms_epsilon", "float32", float("inf")), "not inf",
    ),
    "part of a head": (
        value("llama.rope.dimension_count", "uint32", 8),
        "llama.rope.dimension_count 8 is not supported with heads of 16",
    ),
    "unlike values": (
        value("llama.attention.value_length", "uint32", 32),
        "attention.value_length 32 is not supported with heads of 16",
    ),
    "unknown rotation": (
        value("llama.rope.scaling.type", "string", "longrope"), "type 'longrope' is not supported",
    ),
    "split in zero": (value("split.count", "uint32", (1 << 32) - 1), "split.count is 4294967295"),
    "split in many": (value("split.count", "uint16", 2), "is part 0 (from 0) of 2"),
    "template is wrong": (
        value("tokenizer.chat_template", "string", "{% if %}"), "template cannot be compiled",
    ),
    "template never ends": (
        value(
            "tokenizer.chat_template", "string",
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        ),
        "the chat template takes more processor time",
    ),
    "more tokens than rows": (
        value("tokenizer.ggml.tokens", "array", [f"t{n}" for n in range(102)]),
        "must be an array of 102 numbers",
    ),
    "long tokens": (
        value("tokenizer.ggml.tokens", "array", ["a" * n for n in range(1, 2000)]),
        "must be an array of 1999 numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_wrong_value_is_refused_in_one_sentence(
    tmp_path: Path, folder: Path, check: Check, case: str
) -> None:
    change, words = VALUES[case]
    assert words in check(write_gguf(tmp_path / "model.gguf", folder, change=change))


def test_file_without_damage_is_accepted(tmp_path: Path, folder: Path, check: Check) -> None:
    assert check(write_gguf(tmp_path / "model.gguf", folder)) == ""


def test_vocabulary_that_makes_many_merges_is_bounded(
    tmp_path: Path, folder: Path, check: Check
) -> None:
    """Pieces of one letter: each of n letters has n - 1 pairs of pieces that make it."""
    tokens = [*(letter * n for letter in "abcdefghijklmnopqrst" for n in range(1, 257)), "<unk>"]

    def change(writer: gguf.GGUFWriter) -> None:
        for key in [key for key in writer.kv_data[0] if key.startswith("tokenizer.")]:
            del writer.kv_data[0][key]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * len(tokens))

    file = write_gguf(tmp_path / "model.gguf", folder, change=change)
    assert file.stat().st_size < 2 << 20
    assert "its tokenizer exceeds the 67108864 bytes supported" in check(file)


def test_server_with_a_damaged_file_says_it_once_and_ends(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(FILES["array past the end"][0])
    lines, _ = refused_server(tmp_path, file)
    assert "it ends within its head" in lines[-1]
    assert "\n".join(lines).count(str(file)) == 1


# -- Random damage ---------------------------------------------------------------------------------
NUMBERS = st.sampled_from([0, 1, 2, 7, 8, 9, 31, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 62, HUGE])
EDITS = st.lists(
    st.tuples(
        st.integers(0, (1 << 16) - 1),
        st.one_of(
            st.binary(min_size=1, max_size=9),
            NUMBERS.map(lambda number: struct.pack("<Q", number)),
            NUMBERS.map(lambda number: struct.pack("<I", number & 0xFFFFFFFF)),
        ),
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def small(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("file") / "model.gguf", folder).read_bytes()


@given(edits=EDITS, cut=st.one_of(st.none(), st.integers(0, 1 << 16)))
def test_random_damage_ends_in_an_error_or_in_a_model(
    small: bytes, tmp_path_factory: pytest.TempPathFactory, edits: Any, cut: int | None
) -> None:
    file = tmp_path_factory.getbasetemp() / "damaged.gguf"
    whole = read_gguf_head_size(small)
    data = bytearray(small)
    for at, new in edits:
        at %= whole
        data[at : at + len(new)] = new
    file.write_bytes(data if cut is None else data[: cut % len(data)])
    tracemalloc.start()
    try:
        with suppress(CheckpointError):
            config = load_config(file)
            load_assets(file)
            check_tensors(file, config)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()


def read_gguf_head_size(data: bytes) -> int:
    """Return where the head of the small file ends: its values and descriptions are before."""
    return data.index(b"blk.1.ffn_up.weight") + 64


def test_small_file_is_whole_before_it_is_damaged(small: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(small)
    assert len(read_gguf(file).tensors) == 21
    assert load_assets(file).model.vocab_size == 101
