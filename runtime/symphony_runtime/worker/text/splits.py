"""Places where a long text may be cut without changing its tokens.

A cut is after a letter or digit and before a space, a line's end or a punctuation mark:

    "the tokens" "of a text" "are" ", piece" " by piece"  ->  "the tokens| of a text| are|, piece"

Three conditions make it exact, and `split_pattern` checks each for a given tokenizer.json:

1. No token of the vocabulary spans such a place, so no merge of byte-pair encoding crosses it.
   Marks that follow a letter or digit in some token are excluded.
2. The pre-tokenizer reads a text from left to right without looking back, ends a piece at every
   such place, and decides nothing before it by what follows it. This is known for the expressions
   in `_PATTERNS`, and not assumed for others.
3. The normalizer and added tokens do the same to a piece as to the whole.

If a condition is not known to hold, a text is encoded as a whole.
"""

import re
from collections.abc import Iterable
from typing import Any

# Letters since Unicode 2.0: the tokenizer's tables and ours agree on them, and none composes with
# a character that may follow.
_BEFORE = "0-9A-Za-zа-яА-Я一-龥ぁ-んァ-ヶ가-힣"
_AFTER = (" ", "\n", ",", ".", ";", ":", "(", '"', "。", "、", "，", "！", "？")
# The last character before a mark in a token: one of _BEFORE, or its last bytes (a lone byte).
_LAST = re.compile(f"[{_BEFORE}\udc80-\udcff]\\Z")

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
# Every match of these that holds a letter or digit ends at the latest before a character of
# `_AFTER`, and none looks further to decide.
_PATTERNS = frozenset(
    {
        # GPT-2, and with `_` the tiny model's.
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r" ?[\p{L}_]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}_]+|\n+|[^\S\n]+",
        # Llama 3 (cl100k), Qwen 2.
        rf"{_SHORT}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",
        rf"{_SHORT}|{_WORDS}|\p{{N}}|{_REST}",
        # GPT-4o (o200k).
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_SHORT}?|"
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_SHORT}?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        # DeepSeek V3, in three steps.
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    }
)


def split_pattern(source: dict[str, Any], spellings: Iterable[bytes]) -> re.Pattern[str] | None:
    """Return a pattern for the character before a cut; None if no cut is known exact.

    `source`: a tokenizer.json; `spellings`: the bytes of its vocabulary's tokens.
    """
    model, added = source["model"], source.get("added_tokens") or []
    if not (_merges_only(model) and _normalizes_locally(source.get("normalizer"))):
        return None
    if not all(_matches_alone(token) for token in added):
        return None
    marks = _marks_after(source.get("pre_tokenizer"))
    words = [*spellings, *(str(token["content"]).encode() for token in added)]
    free = [mark for mark in marks if not _spanned(mark, words)]
    if not free:
        return None
    return re.compile(f"[{_BEFORE}](?=[{re.escape(''.join(free))}])")


def _merges_only(model: dict[str, Any]) -> bool:
    """Return whether tokens come from merges alone, each inside what it merges."""
    if model.get("type") != "BPE" or model.get("dropout"):
        return False
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    return not model.get("fuse_unk") or bool(model.get("byte_fallback"))


def _normalizes_locally(normalizer: dict[str, Any] | None) -> bool:
    if normalizer is None:
        return True
    if normalizer["type"] == "Sequence":
        return all(map(_normalizes_locally, normalizer["normalizers"]))
    if normalizer["type"] == "Replace":
        return bool(normalizer["pattern"] == {"String": " "} and normalizer["content"] == "▁")
    return bool(normalizer["type"] == "NFC")


def _matches_alone(token: dict[str, Any]) -> bool:
    """Return whether an added token is found by its spelling, without its context."""
    if token.get("single_word"):
        return False
    return not token.get("rstrip") or not str(token["content"])[-1:].isalnum()


def _marks_after(pre: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the marks before which a pre-tokenizer restarts as at a text's start."""
    if pre is None or pre["type"] == "Digits":
        return _AFTER
    kind = pre["type"]
    if kind == "Sequence":
        each = [_marks_after(part) for part in pre["pretokenizers"]]
        return tuple(mark for mark in _AFTER if all(mark in marks for marks in each))
    if kind == "ByteLevel":  # it adds a space in front of a text
        return (" ",) if pre.get("add_prefix_space") else _AFTER
    if kind == "Metaspace":  # likewise
        return _AFTER if pre.get("prepend_scheme") == "never" else (" ",)
    return _AFTER if kind == "Split" and _is_known(pre) else ()


def _is_known(split: dict[str, Any]) -> bool:
    pattern, how = split["pattern"], (split["behavior"], split["invert"])
    if pattern == {"String": " "}:
        return bool(split["behavior"] != "Removed")
    return pattern.get("Regex") in _PATTERNS and how in (("Isolated", False), ("Removed", True))


def _spanned(mark: str, words: list[bytes]) -> bool:
    """Return whether a token has a mark, or its first bytes, after a cut's character."""
    data = mark.encode()
    heads = [re.escape(data[:n]) + rb"\Z" for n in range(1, len(data))]
    pattern = re.compile(rb"(?<=.)(?:" + rb"|".join([re.escape(data), *heads]) + rb")", re.DOTALL)
    return any(
        _LAST.search(word[: found.start()].decode("utf-8", "surrogateescape"))
        for word in words
        for found in pattern.finditer(word)
    )
