"""Keeps a conversation's text from becoming control strings of its chat template.

A template writes control strings (`<|im_end|>`, `<tool_call>`), which are tokens of their own,
around its values. A value may spell one, in whole or in part: in a content, a name, a key of a
call's arguments, and together with the template's text next to it or with the next value. So before
the template is filled, such values get *marks*, characters that no message has: inside a spelling,
and at an end that could be part of one. A control string of the filled template is the template's
own if it has no mark inside.

Well-known roles are the template's words: some templates write a speaker as `<|{{ role }}|>`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from symphony_kernel.protocol.errno import Errno, SyscallError

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
# Unicode noncharacters.
_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
_WINDOW_CHARS = 16 << 10  # searched at once: a search holds the GIL, and so all programs
_CONTROL = re.compile(r"[<\[{|].*[>\]}|]", re.DOTALL)


def controls_of(added: Iterable[str], template: str) -> list[str]:
    """Return those spellings of added tokens that a template writes as its own.

    Other added tokens, such as runs of spaces and words, are ordinary text.
    """
    return [each for each in added if _CONTROL.fullmatch(each) and each in template]


@dataclass(frozen=True, slots=True)
class Marks:
    """`inside` is removed before encoding; `cut` splits the text into two encodings.

    `end` marks the end of a message that continues.
    """

    inside: str
    cut: str
    end: str

    def removed(self, text: str) -> str:
        return text.replace(self.inside, "").replace(self.cut, "")


class ChatEscaping:
    """Escapes the spellings of special tokens and of control strings.

    `special` tokens are text if the tokenizer is set so; `controls` never are if in one piece.
    """

    def __init__(self, special: Iterable[str], controls: Iterable[str]) -> None:
        specials = sorted(special, key=len, reverse=True)
        self._controls = frozenset(controls) - set(specials)
        both = sorted((*specials, *self._controls), key=len, reverse=True)
        self._special, self._both = _any_of(specials), _any_of(both)
        self._longest = max(map(len, both), default=0)
        self._heads = tuple({s[:n] for s in both for n in range(1, len(s))})
        self._tails = tuple({s[n:] for s in both for n in range(1, len(s))})
        self._all = "\0".join(both)

    def suspects(self, texts: list[str]) -> bool:
        """Return whether any of these texts could become a control string."""
        return any(
            self._could_join(text) or next(self._find(self._both, text), None) is not None
            for text in texts
        )

    def special_in(self, text: str) -> Iterator[re.Match[str]]:
        """Find the spellings of special tokens."""
        return self._find(self._special, text)

    def marks(self, texts: list[str]) -> Marks:
        """Return marks that are in none of the texts. Raise EINVAL if there are none."""
        used = set().union(*texts)
        free = [each for each in _NONCHARACTERS if each not in used]
        if len(free) < 3:
            raise SyscallError(
                Errno.EINVAL, "the messages contain all Unicode noncharacters; remove some"
            )
        return Marks(*free[:3])

    def marked(self, text: str, marks: Marks, key: bool = False) -> str:
        """Return a text with marks where it could become a control string.

        A `key` that is part of a spelling gets no marks at its ends: a template may ask for it.
        """
        if not text:
            return text
        pieces: list[str] = []
        at = 0
        for found in self._find(self._both, text):
            mark = marks.cut if found[0] in self._controls else marks.inside
            pieces += (text[at : found.start() + 1], mark)
            at = found.start() + 1
        pieces.append(text[at:])
        part = not key and self._is_part(text)
        ends = marks.inside + marks.cut
        before = ends if part or text.startswith(self._tails) else ""
        behind = ends if part or text.endswith(self._heads) else ""
        return "".join((before, *pieces, behind))

    def is_as_written(self, filled: str, clean: str, marks: Marks) -> bool:
        """Return whether removing a filled template's marks adds no control strings."""
        own, lost, at = [], 0, 0
        for found in self._find(self._both, filled):
            before = filled[at : found.start()]
            lost += before.count(marks.inside) + before.count(marks.cut)
            own.append((found.start() - lost, found[0]))
            at = found.end()
        return own == [(found.start(), found[0]) for found in self._find(self._both, clean)]

    def _find(self, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
        """Find spellings, a window at a time; each may end after its window."""
        at = 0
        while at < len(text):
            end = at + _WINDOW_CHARS
            found = pattern.search(text, at, end + self._longest)
            if found is None or found.start() >= end:
                at = end
            else:
                at = found.end()
                yield found

    def _could_join(self, text: str) -> bool:
        """Return whether a text is part of a spelling, or starts or ends with one."""
        return bool(text) and (
            text.endswith(self._heads) or text.startswith(self._tails) or self._is_part(text)
        )

    def _is_part(self, text: str) -> bool:
        """Return whether a template could complete it to a spelling.

        Well-known roles are excluded, since a template may compare them.
        """
        return text in self._all and text not in ROLES


def texts_of(messages: list[dict[str, Any]], strings: Any) -> list[str]:
    """Return all texts of messages that are data; `strings` returns those of a value."""
    return [
        text
        for message in messages
        for key, value in message.items()
        if not _is_known_role(key, value)
        for text in strings(value)
    ]


def with_texts(messages: list[dict[str, Any]], change: Any) -> list[dict[str, Any]]:
    """Return the messages with `change` applied to each value that is data."""
    return [
        {k: v if _is_known_role(k, v) else change(v) for k, v in message.items()}
        for message in messages
    ]


def _is_known_role(key: str, value: object) -> bool:
    return key == "role" and value in ROLES


def unknown_token(model: Mapping[str, Any], ids: Mapping[str, int]) -> int | None:
    """Return the id of a tokenizer.json's unknown token, if any."""
    if isinstance(model.get("unk_id"), int):
        return int(model["unk_id"])
    return ids.get(str(model.get("unk_token")))


def _any_of(spellings: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, spellings)) or r"(?!)")
