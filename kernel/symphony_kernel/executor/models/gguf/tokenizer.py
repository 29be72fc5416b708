"""tokenizer.json from a GGUF file's vocabulary.

`tokenizer.ggml.model` says which of two kinds it is:

gpt2    byte-pair encoding of bytes: tokens, merges, and in `tokenizer.ggml.pre` the name of what
        cuts a text into words; the names are llama.cpp's
llama   SentencePiece: tokens with scores. It joins the neighbours that make the token of the
        highest score, which is byte-pair encoding with the merges in the order of scores.
        Characters without a token are spelled in bytes.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from symphony_kernel.executor.models.file_reader import CheckpointError, shown
from symphony_kernel.executor.models.gguf.container import GgufFile, Numbers, Texts

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # ggml's token types
_ADDED = (_UNKNOWN, _CONTROL, _USER_DEFINED)  # found in a text before all others
_SPACE = "\u2581"
_PIECE_CHARS_MAX = 256  # of a token that merges make: bounds the merges of a hostile vocabulary
_UNKNOWN_DEFAULT = 0  # of SentencePiece

# The texts of tokens that end an answer, besides those that the file names. Files made of
# checkpoints with several such tokens name only one.
_ENDS = frozenset(
    {
        "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
        "<|end_of_text|>", "<｜end▁of▁sentence｜>",
    }
)  # fmt: skip

_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_SLASH = _REST.replace(r"[\r\n]*", r"[\r\n/]*", 1)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased(ending: str) -> str:
    """Return the words of GPT-4o and Tekken, which begin with capitals or end in small letters."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{ending}|"
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{ending}"
    )


_LLAMA_3 = (rf"{_SHORT}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",)
_QWEN_2 = (rf"{_SHORT}|{_WORDS}|\p{{N}}|{_REST}",)
_GPT_4O = (rf"{_cased(_SHORT + '?')}|\p{{N}}{{1,3}}|{_REST_SLASH}",)
_TEKKEN = (rf"{_cased('')}|\p{{N}}|{_REST_SLASH}",)
_DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_GPT_2: tuple[str, ...] = ()  # the expression that the tokenizers library has for it
_DIGITS = "digits"  # GPT-2's, after cutting out each digit

# llama.cpp's names for what cuts a text into words: expressions, one after the other.
_WORD_KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"), _LLAMA_3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"), _QWEN_2),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion"), _GPT_2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), (_DIGITS,)),
    **dict.fromkeys(("exaone", "minerva-7b"), (_DIGITS,)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _GPT_4O),
    "tekken": _TEKKEN,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK_3),
}
# Kinds with which a word that is a token needs no merges.
_WHOLE_WORDS = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "glm4", "tekken"}
)
_COMPOSED = frozenset({"qwen2", "deepseek-r1-qwen", "megrez"})  # Unicode's form NFC first


def tokenizer_json(file: GgufFile, bytes_max: int) -> bytes:
    """Return tokenizer.json; CheckpointError: there is none, or it exceeds `bytes_max`."""
    kind = file.values.get("tokenizer.ggml.model")
    makers = {"gpt2": _byte_level, "llama": _sentence_piece}
    if not isinstance(kind, str) or kind not in makers:
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.model must be one of {', '.join(makers)}, not "
            f"{shown(kind)}"
        )
    vocabulary = _Vocabulary(file)
    parts = makers[kind](file, vocabulary, bytes_max)
    whole = {"version": "1.0", "truncation": None, "padding": None, "post_processor": None}
    data = json.dumps(
        {**whole, "added_tokens": vocabulary.added(), **parts}, ensure_ascii=False
    ).encode()
    if len(data) > bytes_max:
        raise _too_large(file, bytes_max)
    return data


def token_text(file: GgufFile, token: int | None) -> str:
    """Return the text of a token by its id; "": there is none."""
    tokens = file.values.get("tokenizer.ggml.tokens")
    if token is None or not isinstance(tokens, Texts) or not 0 <= token < tokens.count:
        return ""
    return next(text for number, text in enumerate(tokens) if number == token)


def end_tokens(file: GgufFile) -> list[int]:
    """Return the ids of tokens that end an answer, `eos_token_id` first."""
    named = [file.values.get(f"tokenizer.ggml.{w}_token_id") for w in ("eos", "eot", "eom")]
    found = [token for token in named if type(token) is int]
    if isinstance(file.values.get("tokenizer.ggml.tokens"), Texts):
        vocabulary = _Vocabulary(file)
        found += [n for n in vocabulary.of_type(_CONTROL) if vocabulary.tokens[n] in _ENDS]
    return list(dict.fromkeys(found))


class _Vocabulary:
    """The tokens and their types."""

    def __init__(self, file: GgufFile) -> None:
        texts = file.values.get("tokenizer.ggml.tokens")
        if not isinstance(texts, Texts) or not texts.count:
            raise CheckpointError(f"{file.path}: tokenizer.ggml.tokens must be an array of strings")
        # A token without text could never be found.
        self.tokens = [text or f"[EMPTY_{number}]" for number, text in enumerate(texts)]
        if len(set(self.tokens)) != len(self.tokens):
            raise CheckpointError(f"{file.path}: tokenizer.ggml.tokens has a token twice")
        key = "tokenizer.ggml.token_type"
        types = _numbers(file, key, len(self.tokens))
        self.types = [_NORMAL] * len(self.tokens) if types is None else types

    def of_type(self, *kinds: int) -> list[int]:
        return [number for number, kind in enumerate(self.types) if kind in kinds]

    def added(self) -> list[dict[str, Any]]:
        """Return the tokens that are found before all others; not the user's, all are special."""
        rest = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        return [
            {"id": n, "content": self.tokens[n], **rest, "special": kind != _USER_DEFINED}
            for n, kind in enumerate(self.types)
            if kind in _ADDED
        ]

    def plain(self) -> dict[str, int]:
        """Return the model's tokens: all but the added ones at the end, so that ids stay."""
        count = len(self.tokens)
        while count and self.types[count - 1] in _ADDED:
            count -= 1
        return {text: number for number, text in enumerate(self.tokens[:count])}


def _numbers(file: GgufFile, key: str, count: int) -> list[Any] | None:
    """Return an array with a number for each token, None without it."""
    value = file.values.get(key)
    if value is None:
        return None
    if not isinstance(value, Numbers) or value.count != count:
        raise CheckpointError(f"{file.path}: {key} must be an array of {count} numbers")
    found: list[Any] = value.array().tolist()
    return found


def _too_large(file: GgufFile, bytes_max: int) -> CheckpointError:
    return CheckpointError(f"{file.path}: its tokenizer exceeds the {bytes_max} bytes supported")


# -- Byte-pair encoding of bytes -------------------------------------------------------------------
def _byte_level(file: GgufFile, vocabulary: _Vocabulary, bytes_max: int) -> dict[str, Any]:
    del bytes_max  # what it makes is about as large as the file's head
    name = file.values.get("tokenizer.ggml.pre")
    if not isinstance(name, str) or name not in _WORD_KINDS:
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.pre {shown(name)} is not supported; known are "
            f"{', '.join(_WORD_KINDS)}"
        )
    merges = file.values.get("tokenizer.ggml.merges")
    if not isinstance(merges, Texts):
        raise CheckpointError(f"{file.path}: tokenizer.ggml.merges must be an array of strings")
    kinds = _WORD_KINDS[name]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps = [_split(kind) for kind in kinds]
    words = {**byte_level, "use_regex": kinds in (_GPT_2, (_DIGITS,))}
    return {
        "normalizer": {"type": "NFC"} if name in _COMPOSED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, words]},
        "decoder": {**byte_level, "use_regex": True},
        "model": _bpe(vocabulary.plain(), _pairs(file, merges), ignore_merges=name in _WHOLE_WORDS),
    }


def _split(kind: str) -> dict[str, Any]:
    if kind == _DIGITS:
        return {"type": "Digits", "individual_digits": True}
    return {
        "type": "Split", "pattern": {"Regex": kind}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip


def _pairs(file: GgufFile, merges: Texts) -> Iterator[tuple[str, str]]:
    for text in merges:
        at = text.find(" ", 1)  # a token may be a space
        if at < 0:
            raise CheckpointError(f"{file.path}: the merge {shown(text)} has no two parts")
        yield text[:at], text[at + 1 :]


def _bpe(
    vocabulary: dict[str, int], merges: Iterable[Sequence[str]], **settings: Any
) -> dict[str, Any]:
    plain = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False,
    }  # fmt: skip
    return {**plain, **settings, "vocab": vocabulary, "merges": [list(pair) for pair in merges]}


# -- SentencePiece ---------------------------------------------------------------------------------
def _sentence_piece(file: GgufFile, vocabulary: _Vocabulary, bytes_max: int) -> dict[str, Any]:
    scores = _numbers(file, "tokenizer.ggml.scores", len(vocabulary.tokens))
    if scores is None or not np.isfinite(scores).all():
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.scores must be there, and finite numbers"
        )
    unknown = file.values.get("tokenizer.ggml.unknown_token_id", _UNKNOWN_DEFAULT)
    if type(unknown) is not int or not 0 <= unknown < len(vocabulary.tokens):
        raise CheckpointError(f"{file.path}: tokenizer.ggml.unknown_token_id is {shown(unknown)}")
    tokens = {text: number for number, text in enumerate(vocabulary.tokens)}
    leading = file.values.get("tokenizer.ggml.add_space_prefix", True) is True
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    before = [{"type": "Prepend", "prepend": _SPACE}] if leading else []
    after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if leading else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, spaces]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *after,
            ],
        },
        "model": _bpe(
            tokens,
            _merges(file, vocabulary, scores, bytes_max),
            unk_token=vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=all(f"<0x{byte:02X}>" in tokens for byte in range(256)),
        ),
    }


def _merges(
    file: GgufFile, vocabulary: _Vocabulary, scores: list[float], bytes_max: int
) -> list[tuple[str, str]]:
    """Return the pairs of tokens that make a token, by its score, the highest first."""
    numbers = vocabulary.of_type(_NORMAL)
    tokens = {vocabulary.tokens[number]: number for number in numbers}
    found: list[tuple[float, int, int, str, str]] = []
    size = 0
    for text, number in tokens.items():
        for at in range(1, len(text) if len(text) <= _PIECE_CHARS_MAX else 0):
            left, right = tokens.get(text[:at]), tokens.get(text[at:])
            if left is not None and right is not None:
                found.append((-scores[number], left, right, text[:at], text[at:]))
                size += len(text)
        if size > bytes_max:
            raise _too_large(file, bytes_max)
    found.sort()
    return [(left, right) for *_, left, right in found]
