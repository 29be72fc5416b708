"""Cuts in long texts: pieces give exactly the whole text's tokens, with every kind of tokenizer."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel import tiny_model
from symphony_runtime.worker.text import splits as text_splits
from symphony_runtime.worker.text.splits import split_pattern
from symphony_runtime.worker.text.tokenizer import ModelTokenizer, token_bytes
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer, UnigramTrainer

PIECE_CHARS = 6
CORPUS = [
    "It's 3 o'clock, they'll say; the tokens of a text are the tokens of its pieces.\n\n",
    'def f(x):\n    return x[0], x[1] # 12345, 3.14 "a" (b)\n\n\tif a_b: pass\n',
    "中文，没有空格。还有标点！真的吗？ 日本語のテキスト、です。\n",
    "Привет, мир: да. 한국어 문장, 둘.\n",
    "foo.bar.com, e.g. a.b; 10,000.50 \r\n  x  y   z (see: this) «don't» I'D WE'LL CamelCase\n",
]
# What cuts, and what could make one wrong, next to each other.
ALPHABET = (
    "ab stdlE'_0019 \n\r\t,.;:(\"!-<|>e\u0301é中国，。、「のがカ゛한글да\u00a0\u2028\ufb01😀\u200d"
)
TEXTS = st.one_of(
    st.text(st.sampled_from(ALPHABET), max_size=80),
    st.text(max_size=60),
    st.lists(st.sampled_from([*CORPUS, "<|end|>", "<pad>", "  ", "ab cd"]), max_size=4).map(
        "".join
    ),
)


def _byte_level(pre: Any, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken("<|end|>", special=True)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens(["<pad>", "  ", AddedToken("<mask>", lstrip=True)])
    return tokenizer


def _split(*patterns: str, behavior: str = "isolated", invert: bool = False) -> Any:
    splits = [pre_tokenizers.Split(Regex(each), behavior, invert) for each in patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, last])


def _metaspace(scheme: str, split: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()])
    trainer = BpeTrainer(vocab_size=700, special_tokens=["<unk>"])
    trainer.show_progress = False
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    source = json.loads(tokenizer.to_str())
    vocabulary = source["model"]["vocab"]
    for byte in range(256):
        vocabulary.setdefault(f"<0x{byte:02X}>", len(vocabulary))
    return Tokenizer.from_str(json.dumps(source))


def _gemma() -> Tokenizer:
    tokenizer = _metaspace("never")
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer


_KNOWN = sorted(text_splits._PATTERNS, key=len)
_DEEPSEEK = [each for each in _KNOWN if each in (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+")] + [
    each for each in _KNOWN if each.startswith("[!")
]


@functools.cache
def tokenizers_by_name() -> dict[str, Tokenizer]:
    """Return tokenizers of every kind whose texts are cut."""
    assert len(_DEEPSEEK) == 3
    single = [each for each in _KNOWN if each not in _DEEPSEEK]
    assert len(single) == 5
    found = {f"pattern {i}": _byte_level(_split(each)) for i, each in enumerate(single)}
    return found | {
        "tiny model": Tokenizer.from_file(str(Path(tiny_model.path()) / "tokenizer.json")),
        "deepseek": _byte_level(_split(*_DEEPSEEK)),
        "gpt-2": _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "prefix space": _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "smollm": _byte_level(
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            )
        ),
        "nfc": _byte_level(_split(single[2]), normalizers.NFC()),
        "inverted": _byte_level(_split(single[3], behavior="removed", invert=True)),
        "one word": _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        "metaspace": _metaspace("never"),
        "metaspace first": _metaspace("first", split=False),
        "metaspace always": _metaspace("always"),
        "gemma": _gemma(),
    }


@functools.cache
def text_of(name: str) -> ModelTokenizer:
    """Return a tokenizer's `ModelTokenizer`, with short pieces."""
    source = tokenizers_by_name()[name].to_str().encode()
    model = {"name": name, "vocab_size": 300, "page_size": 16}
    return ModelTokenizer({"model": model, "tokenizer": source}, PIECE_CHARS)


def whole_ids(name: str, text: str) -> list[int]:
    """Return the tokens of a text that is encoded in one go, special tokens' spellings as text."""
    tokenizer = tokenizers_by_name()[name]
    tokenizer.encode_special_tokens = True
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


NAMES = sorted(tokenizers_by_name())


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_split_text_any_tokenizer_gives_tokens_of_whole(name: str, text: str) -> None:
    tokens = np.frombuffer(text_of(name).tokenize(text.encode()), "<u4").tolist()
    assert tokens == whole_ids(name, text)


@pytest.mark.parametrize("name", NAMES)
def test_split_text_prose_is_cut(name: str) -> None:
    """Without this the property above could hold because no text is ever cut."""
    pieces = list(text_of(name).tokenize_pieces(CORPUS[0].encode()))
    if name == "one word":  # its tokens span words, so that it shows that this is noticed
        assert pieces == [len(CORPUS[0])]
        return
    assert len([size for size in pieces if size]) >= 8
    assert max(pieces) < 5 * PIECE_CHARS


def _pattern(tokenizer: Tokenizer, **changes: Any) -> Any:
    source = json.loads(tokenizer.to_str())
    source["model"] |= changes
    return split_pattern(source, token_bytes(source, tokenizer))


def test_split_pattern_unknown_kinds_are_not_cut() -> None:
    plain = tokenizers_by_name()["gpt-2"]
    assert _pattern(plain) is not None
    assert _pattern(plain, dropout=0.1) is None
    assert _pattern(plain, end_of_word_suffix="</w>") is None
    assert _pattern(plain, fuse_unk=True) is None
    assert _pattern(_byte_level(_split(r"(?<=a) b|\w+"))) is None
    assert _pattern(_byte_level(_split(_KNOWN[3], behavior="merged_with_next"))) is None
    assert _pattern(_byte_level(pre_tokenizers.Whitespace())) is None
    assert _pattern(_byte_level(_split(_KNOWN[3]), normalizers.Prepend("x"))) is None
    assert _pattern(_byte_level(_split(_KNOWN[3]), normalizers.NFKD())) is None
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = UnigramTrainer(vocab_size=300, unk_token="<unk>", special_tokens=["<unk>"])
    unigram.train_from_iterator(CORPUS, trainer)
    assert _pattern(unigram) is None


def test_split_pattern_mark_inside_a_token_is_no_place() -> None:
    found = _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    assert _pattern(found).search("a,") is not None
    found.add_tokens(["<a,b>"])
    pattern = _pattern(found)
    assert pattern.search("a,") is None
    assert pattern.search("a b") is not None
    found.add_tokens([AddedToken("word", single_word=True)])
    assert _pattern(found) is None
