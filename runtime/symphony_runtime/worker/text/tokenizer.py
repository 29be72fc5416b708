"""Text and tokens: the model's tokenizer and chat template.

Both come from the kernel's `Welcome`. A program's text is untrusted. The spelling of a special
token in it stays text in every call, so that a text cannot forge the end of a message or the start
of another speaker's.

Work on a long text is a generator, `Pieces`. Between two yields it processes one piece. It yields
the number of characters of the next piece, and returns the result. `text.pool` schedules the pieces
of all tenants; `tokenize`, `detokenize` and `chat` process all pieces at once.
"""

import json
import re
from collections.abc import Callable, Generator
from itertools import chain
from typing import Any

import msgpack
import numpy as np
from jinja2 import Template, TemplateError
from symphony_kernel.protocol.chat_templates import chat_environment
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import CHAT_TEXT_MAX
from tokenizers import Tokenizer

from symphony_runtime.texts.chat_escaping import ChatEscaping, Marks, controls_of, unknown_token
from symphony_runtime.texts.token_texts import spelling_decoder
from symphony_runtime.worker.text.conversation import (
    Conversation,
    read_conversation,
    read_messages,
)
from symphony_runtime.worker.text.splits import split_pattern

Pieces = Generator[int, None, bytes]

PIECE_CHARS = 16 << 10  # about 5 ms of a processor
_LOOK_CHARS = 64 << 10  # searched for a cut, in one piece
# Errors of a template on messages that its author did not expect.
_TEMPLATE_ERRORS = (
    TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
NO_MODEL: dict[str, Any] = {"model": {"name": "", "vocab_size": 0}}


class ModelTokenizer:
    """A tokenizer, a chat template and `model_info`. Its methods may run in a thread."""

    def __init__(self, about: dict[str, Any], piece_chars: int = PIECE_CHARS) -> None:
        """`about` is a kernel's Welcome. Without a tokenizer, text calls raise ENOSYS."""
        self._piece_chars = piece_chars
        self.model: dict[str, Any] = about["model"]
        self.vocab_size = int(self.model["vocab_size"])
        self.hidden_size = int(self.model.get("hidden_size", 0))
        self.info: bytes = msgpack.packb(self.model, use_bin_type=True)
        source: bytes = about.get("tokenizer") or b""
        self._plain: Tokenizer | None = None
        self._specials: dict[str, int] = {}
        self._added: list[str] = []  # spellings of tokens that are ordinary text
        self._splits: re.Pattern[str] | None = None
        if source:
            parsed = json.loads(source)
            self._plain, self._marked = _load(source, plain=True), _load(source, plain=False)
            self._bytes = token_bytes(parsed, self._plain)
            self._splits = split_pattern(parsed, self._bytes)
            self._specials, self._added = _added_tokens(self._plain)
            unknown = unknown_token(parsed["model"], self._plain.get_vocab())
            # Special tokens that count: any text may become the unknown token.
            self._counted_specials = frozenset(self._specials.values()) - {unknown}
        template = about.get("chat_template")
        self._guard = ChatEscaping(self._specials, controls_of(self._added, template or ""))
        self._template = chat_environment().from_string(template) if template else None
        self._names: dict[str, Any] = about.get("special") or {}

    def tokenize(self, text: bytes) -> bytes:
        """Return u32 tokens (little-endian) of UTF-8 text. Raise EINVAL."""
        return whole(self.tokenize_pieces(text))

    def detokenize(self, tokens: bytes) -> bytes:
        """Return the raw bytes of u32 tokens; ids without text give none."""
        return whole(self.detokenize_pieces(tokens))

    def chat(self, data: bytes) -> bytes:
        """Return u32 tokens of msgpack messages through the model's own template.

        Raise EINVAL for wrong messages or if the template refuses them, ENOSYS if there is no
        template, EFBIG if the filled template is too long.
        """
        return whole(self.chat_pieces(data))

    def chat_with(self, data: bytes) -> bytes:
        """Return u32 tokens of a msgpack conversation with tools and variables; as `chat`."""
        return whole(self.chat_with_pieces(data))

    def tokenize_pieces(self, text: bytes) -> Pieces:
        return (yield from self._encode(self._tokenizer, decode(text)))

    def detokenize_pieces(self, tokens: bytes) -> Pieces:
        _ = self._tokenizer
        table, size, step = self._bytes, len(self._bytes), 4 * self._piece_chars
        made: list[bytes] = []
        for at in range(0, len(tokens), step):
            ids = np.frombuffer(tokens[at : at + step], dtype="<u4").tolist()
            made.append(b"".join([table[i] for i in ids if i < size]))
            yield 0
        return b"".join(made)

    def chat_pieces(self, data: bytes) -> Pieces:
        return self._chat_pieces(data, read_messages)

    def chat_with_pieces(self, data: bytes) -> Pieces:
        return self._chat_pieces(data, read_conversation)

    def _chat_pieces(self, data: bytes, read: Callable[[bytes], Conversation]) -> Pieces:
        tokenizer, template = self._tokenizer, self._template
        if template is None:
            raise SyscallError(Errno.ENOSYS, "the model has no chat template")
        yield len(data)
        conversation = read(data)
        guard, texts = self._guard, conversation.texts()
        if not guard.suspects(texts):
            yield 0
            end = guard.marks(texts).end if conversation.continues else ""
            filled = yield from self._render(template, conversation, end)
            tokens = yield from self._encode_filled(filled)
            if tokens is not None:
                return tokens
        yield len(data)
        marks = guard.marks(texts)
        marked = conversation.with_texts(lambda value: _marked(value, guard, marks))
        filled = yield from self._render(template, marked, marks.end)
        yield len(filled)
        clean = marks.removed(filled)
        if guard.is_as_written(filled, clean, marks):
            tokens = yield from self._encode_filled(clean)
            if tokens is not None:
                return tokens
        return (yield from self._encode_pieces(tokenizer, filled, marks))

    @property
    def _tokenizer(self) -> Tokenizer:
        if self._plain is None:
            raise SyscallError(Errno.ENOSYS, "the model has no tokenizer")
        return self._plain

    def _render(
        self, template: Template, conversation: Conversation, end: str
    ) -> Generator[int, None, str]:
        """Fill the template. `end` marks where the last message ends, if it continues."""
        made: list[str] = []
        length = 0
        try:
            for part in template.generate(conversation.values(self._names, end)):
                made.append(part)
                length += len(part)
                if length > CHAT_TEXT_MAX:
                    detail = f"the chat template makes more than {CHAT_TEXT_MAX} characters"
                    raise SyscallError(Errno.EFBIG, detail)
                yield 0
        except _TEMPLATE_ERRORS as error:
            raise SyscallError(Errno.EINVAL, f"the chat template: {error}") from error
        return conversation.cut("".join(made), end)

    def _encode(self, tokenizer: Tokenizer, text: str) -> Pieces:
        made: list[bytes] = []
        at = 0
        while at < len(text):
            end = yield from self._next_split(text, at)
            yield end - at
            # `encode` would hold the GIL, and so all programs, for the whole piece.
            found = tokenizer.encode_batch_fast([text[at:end]], add_special_tokens=False)
            made.append(np.asarray(found[0].ids, dtype="<u4").tobytes())
            at = end
        return b"".join(made)

    def _next_split(self, text: str, at: int) -> Generator[int, None, int]:
        """Return the end of the piece from `at`: the first cut, or the text's end."""
        at += self._piece_chars
        while self._splits is not None and at < len(text):
            found = self._splits.search(text, at, at + _LOOK_CHARS)
            if found is not None:
                return found.end()
            at += _LOOK_CHARS - 1  # the last character was searched without its successor
            yield 0
        return len(text)

    def _encode_filled(self, text: str) -> Generator[int, None, bytes | None]:
        """Encode a filled template without marks.

        Return None if it has other special tokens than those that it spells. A tokenizer may change
        a text (to lower case, say) before it looks for them.
        """
        tokens = yield from self._encode(self._marked, text)
        yield len(text)
        found = np.isin(np.frombuffer(tokens, "<u4"), list(self._counted_specials)).sum()
        spelt = (self._specials[each[0]] for each in self._guard.special_in(text))
        return tokens if found == sum(map(self._counted_specials.__contains__, spelt)) else None

    def _encode_pieces(self, tokenizer: Tokenizer, filled: str, marks: Marks) -> Pieces:
        """Encode a filled template; its special tokens are those without a mark inside."""
        pieces: list[bytes] = []
        at = 0
        for found in chain(self._guard.special_in(filled), [None]):
            text = filled[at : found.start() if found else None]
            for each in text.replace(marks.inside, "").split(marks.cut):
                tokens = yield from self._encode(tokenizer, each)
                pieces.append(tokens)
            if found:
                pieces.append(np.asarray([self._specials[found[0]]], dtype="<u4").tobytes())
                at = found.end()
        return b"".join(pieces)


def whole(pieces: Pieces) -> bytes:
    """Process all pieces and return the result."""
    while True:
        try:
            next(pieces)
        except StopIteration as stop:
            result: bytes = stop.value
            return result


# --- Tokenizers ----------------------------------------------------------------------------------
def _load(source: bytes, plain: bool) -> Tokenizer:
    tokenizer = Tokenizer.from_str(source.decode("utf-8"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = plain
    return tokenizer


def _added_tokens(tokenizer: Tokenizer) -> tuple[dict[str, int], list[str]]:
    """Return the special tokens with their ids, and the other added spellings."""
    added = tokenizer.get_added_tokens_decoder()
    special = {token.content: number for number, token in added.items() if token.special}
    return special, [token.content for token in added.values() if not token.special]


def token_bytes(source: dict[str, Any], tokenizer: Tokenizer) -> list[bytes]:
    """Return each id's raw bytes, from a tokenizer.json and its tokenizer; special ones: none."""
    decode = spelling_decoder(source)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for spelling, number in vocabulary.items():
        table[number] = decode(spelling)
    for number, token in tokenizer.get_added_tokens_decoder().items():
        table[number] = b"" if token.special else token.content.encode("utf-8")
    return table


def decode(text: bytes) -> str:
    """Return UTF-8 text. Raise EINVAL."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SyscallError(Errno.EINVAL, "no UTF-8") from error


def _marked(value: Any, guard: ChatEscaping, marks: Marks) -> Any:
    """Return a message's value with marks in its texts, keys included."""
    if isinstance(value, str):
        return guard.marked(value, marks)
    if isinstance(value, list):
        return [_marked(item, guard, marks) for item in value]
    if isinstance(value, dict):
        return {
            guard.marked(key, marks, key=True): _marked(item, guard, marks)
            for key, item in value.items()
        }
    return value
