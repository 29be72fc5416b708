"""Tokenizers of GGUF files: the same tokens as the tokenizer.json that they are made of."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from symphony_kernel.executor.models.assets import load_assets
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_runtime.worker.text.tokenizer import ModelTokenizer
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tests.support.executor.gguf_files import write_gguf
from tests.support.executor.models import make_checkpoint

CORPUS = [
    Path(__file__).read_text(),
    "Übergrößenträger naïve 東京 café  don't I'LL 12345 67\r\n\n" * 4,
]
TEXTS = [
    "Hello world", " leading and  double   spaces ", "don't I'LL we've", "a\tb\nlines\r\n\r\n x",
    "1234567 89", "3.14159, 2,000", "def f(x):\n    return x ** 2  # x\n", "naïve café e\u0301",
    "東京タワー 你好", "🙂👍🏽 emoji", "Ünïcödé ΩMEGA мир", "<|im_start|>user\nhi<|im_end|>",
    "\u00a0nbsp\u2003em", "", " ", "\n", "HTTPServer XMLHttpRequest2", "a" * 300, "'s'S don`t",
]  # fmt: skip
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# The expressions of the models' own tokenizer.json, as their authors published them.
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace("{1,3}", "")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(expression: str) -> list[Any]:
    return [
        pre_tokenizers.Split(Regex(expression), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


KINDS: dict[str, tuple[list[Any], bool, bool]] = {  # steps, whole words, NFC
    "gpt-2": ([pre_tokenizers.ByteLevel(add_prefix_space=False)], False, False),
    "smollm": (
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ],
        False, False,
    ),
    "llama-bpe": (_split(LLAMA_3), True, False),
    "qwen2": (_split(QWEN_2), False, True),
    "tekken": (_split(TEKKEN), True, False),
}  # fmt: skip


def _byte_level(pre: str, special_last: bool) -> Tokenizer:
    steps, whole, composed = KINDS[pre]
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=700, show_progress=False,
            special_tokens=[] if special_last else list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )  # fmt: skip
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def _file(folder: Path, tokenizer: Tokenizer, pre: str, **given: Any) -> Path:
    """Write a GGUF file with a tokenizer; its model is as small as can be."""
    vocab = tokenizer.get_vocab_size() + 3  # padding, as models have it
    made = make_checkpoint(folder / "model", vocab_size=vocab, bos_token_id=0, eos_token_id=0)
    tokenizer.save(str(made.directory / "tokenizer.json"))
    return write_gguf(folder / "model.gguf", made.directory, pre=pre, **given)


def _same_tokens(file: Path, tokenizer: Tokenizer) -> None:
    found = Tokenizer.from_buffer(load_assets(file).tokenizer_json)
    for plain in (False, True):
        found.encode_special_tokens = tokenizer.encode_special_tokens = plain
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert found.encode(text, add_special_tokens=False).ids == ids, text
            assert found.decode(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("pre", KINDS)
@pytest.mark.parametrize("special_last", [False, True])
def test_byte_level_tokens_equal_the_original(tmp_path: Path, pre: str, special_last: bool) -> None:
    tokenizer = _byte_level(pre, special_last)
    _same_tokens(_file(tmp_path, tokenizer, pre), tokenizer)


def test_text_of_a_file_goes_through_the_workers_tokenizer_and_back(tmp_path: Path) -> None:
    assets = load_assets(_file(tmp_path, _byte_level("qwen2", special_last=True), "qwen2"))
    about = {"model": {"vocab_size": assets.model.vocab_size}, "tokenizer": assets.tokenizer_json}
    worker = ModelTokenizer(about)
    for text in TEXTS:
        if text != "naïve café e\u0301":  # NFC composes it
            assert worker.detokenize(worker.tokenize(text.encode())).decode() == text


# -- SentencePiece ---------------------------------------------------------------------------------
def _sentence_piece(prefix: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    space = [normalizers.Replace(" ", "\u2581")]
    steps = [normalizers.Prepend("\u2581"), *space] if prefix else space
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.train_from_iterator(
        [word for text in CORPUS for word in text.split("\n")],
        trainers.BpeTrainer(
            vocab_size=900, show_progress=False, limit_alphabet=200, max_token_length=12,
            special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        ),
    )  # fmt: skip
    source = json.loads(tokenizer.to_str())
    source["added_tokens"] = [token for token in source["added_tokens"] if token["id"] < 3]
    end = [decoders.Strip(" ", 1, 0)] if prefix else []
    found = Tokenizer.from_str(json.dumps(source))
    found.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *end]
    )
    return found


def _pieces(tokenizer: Tokenizer, prefix: bool) -> Callable[[gguf.GGUFWriter], None]:
    """Return what makes a file's tokenizer one of SentencePiece, with scores by rank."""

    def change(writer: gguf.GGUFWriter) -> None:
        values = writer.kv_data[0]
        for key in [key for key in values if key.startswith("tokenizer.")]:
            del values[key]
        count = tokenizer.get_vocab_size()
        tokens = [str(tokenizer.id_to_token(number)) for number in range(count)]
        kinds = [
            gguf.TokenType.UNKNOWN,
            *[gguf.TokenType.CONTROL] * 2,
            *[gguf.TokenType.BYTE] * 256,
        ]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_types([*kinds, *[gguf.TokenType.NORMAL] * (count - len(kinds))])
        writer.add_token_scores([-float(number) for number in range(count)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_space_prefix(prefix)

    return change


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_with_scores_make_the_tokens_of_the_original(tmp_path: Path, prefix: bool) -> None:
    tokenizer = _sentence_piece(prefix)
    file = _file(tmp_path, tokenizer, "", change=_pieces(tokenizer, prefix))
    _same_tokens(file, tokenizer)
    assets = load_assets(file)
    assert (assets.model.bos, assets.model.eos) == (1, (2,))
    assert assets.special == {"bos_token": "<s>", "eos_token": "</s>"}


# -- Special tokens and the template ---------------------------------------------------------------
def test_template_and_special_tokens_are_the_files(tmp_path: Path) -> None:
    tokenizer = _byte_level("smollm", special_last=False)

    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template("{{ bos_token }}{{ messages[0].content }}")
        del writer.kv_data[0]["tokenizer.ggml.eos_token_id"]
        writer.add_eos_token_id(2)

    assets = load_assets(_file(tmp_path, tokenizer, "smollm", change=change))
    assert assets.chat_template == "{{ bos_token }}{{ messages[0].content }}"
    assert assets.special == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert assets.model.bos == 0
    # The named one first; then control tokens whose texts end answers in all models that have them.
    assert assets.model.eos == (2, 0)
    assert assets.model.name == "model"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("tokenizer.ggml.model", "t5", "must be one of gpt2, llama, not 't5'"),
        ("tokenizer.ggml.pre", "odd", "pre 'odd' is not supported; known are llama3"),
        ("tokenizer.ggml.merges", ["ab"], "merge 'ab' has no two parts"),
        ("tokenizer.ggml.merges", [1, 2], "merges must be an array of strings"),
        ("tokenizer.ggml.tokens", ["a", "a"], "has a token twice"),
        ("tokenizer.ggml.token_type", [1, 1], "must be an array of 707 numbers"),
        ("tokenizer.ggml.eos_token_id", -1, "must hold token ids, not"),
        ("tokenizer.ggml.eos_token_id", 70_000, "outside the vocabulary"),
        ("tokenizer.chat_template", 7, "chat_template must be text"),
    ],
)
def test_tokenizer_with_a_wrong_value_is_refused_in_words(
    tmp_path: Path, key: str, value: Any, words: str
) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_int32(key, value)

    file = _file(tmp_path, _byte_level("gpt-2", special_last=True), "gpt-2", change=change)
    with pytest.raises(CheckpointError, match=words):
        load_assets(file)
