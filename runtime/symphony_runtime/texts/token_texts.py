"""How a tokenizer.json spells tokens: for the worker's `detokenize`, and for traces."""

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_METASPACE = "\u2581"


def spelling_decoder(source: dict[str, Any]) -> Callable[[str], bytes]:
    """Return what makes raw bytes of a spelling in a vocabulary, for a tokenizer.json.

    Byte-level vocabularies spell bytes as printable characters. Others mark spaces with U+2581 and
    spell lone bytes as <0xNN>.
    """
    parts = json.dumps([source.get("decoder"), source.get("pre_tokenizer")])
    return _byte_level() if '"ByteLevel"' in parts else _sentence_piece


def _byte_level() -> Callable[[str], bytes]:
    """Return a decoder of GPT-2's byte spelling: printable as is, others from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelled = {chr(b): b for b in printable}
    others = (b for b in range(256) if b not in set(printable))
    spelled |= {chr(0x100 + i): b for i, b in enumerate(others)}

    def decode(spelling: str) -> bytes:
        return b"".join(
            bytes((spelled[c],)) if c in spelled else c.encode("utf-8") for c in spelling
        )

    return decode


def _sentence_piece(spelling: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(spelling)
    if byte:
        return bytes((int(byte[1], 16),))
    return spelling.replace(_METASPACE, " ").encode("utf-8")


@lru_cache(maxsize=1)  # a process has one model
def token_texts(source: bytes) -> list[str]:
    """Return each token's text as people read it, from a tokenizer.json (b"": of none).

    Bytes that are no text are written as \\xNN, and special tokens are spelled.
    """
    parsed = json.loads(source or b'{"model": {"vocab": {}}}')
    vocabulary = parsed["model"]["vocab"]
    if isinstance(vocabulary, list):  # of pieces with their scores
        vocabulary = {piece[0]: number for number, piece in enumerate(vocabulary)}
    decode = spelling_decoder(parsed)
    found = {
        number: decode(spelling).decode("utf-8", "backslashreplace")
        for spelling, number in vocabulary.items()
    }
    found |= {token["id"]: token["content"] for token in parsed.get("added_tokens") or ()}
    return [found.get(number, f"<{number}>") for number in range(max(found, default=-1) + 1)]
