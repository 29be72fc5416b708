"""Walks: masks of a regular expression, each made once for all texts that have come to its state.

Only pure regular expressions have states that are known here (see `regex_automata`). Where a text
can go on in one way only, llguidance allows the token alone with which the tokenizer would go on:
that depends on the bytes that are forced, on what comes behind them, and on the token before them.

A text's first states are near ones, which are few (see `regex_automata`): a grammar has a walk for
these, and behind it one that counts, for texts that have become too long.
"""

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from llguidance import LLTokenizer

from symphony_kernel.executor.base import UInt32
from symphony_kernel.grammar.regex_automata import NOTHING, Expression, UnsupportedRegexError

_MASKS_MAX: Final = 64  # of one walk; a byte for each eight tokens
_FORCED_MAX: Final = 2_048  # masks of one token; some hundred bytes each
_STEPS_MAX: Final = 20_000
_TRIES: Final = 256  # masks, of which half should be known
_STEP_BYTES: Final = 1_024  # that a step takes, with the states and nodes that it leads to
_WORTH: Final = 1_000  # masks found, for which as many states are looked for as there is room for
_Key: TypeAlias = tuple[bytes, int, int]  # forced bytes, the view behind them, the token before
_BEGIN, _END = "start: /", "/"  # around an expression, in llguidance's grammar of it


class MaskCache:
    """The states of one grammar's texts, and the masks that are known. Of one thread."""

    def __init__(
        self, expression: Expression, tokenizer: LLTokenizer, longer: "MaskCache | None" = None
    ) -> None:
        """Walk through an expression; through its near states, byte by byte, with `longer`."""
        self._expression = expression
        self._tokenizer = tokenizer
        self.longer = longer  # that of texts with more than `slack` bytes, or too many states
        self.slack = expression.slack
        self._after: dict[tuple[int, int], int] = {}  # by state and token
        self._sizes: dict[int, int] = {}  # bytes of these tokens
        self._seen: dict[int, tuple[bytes, int] | None] = {}  # by states: forced bytes and views
        # Used last at the end; and apart from them those of one token that is forced.
        self._masks: OrderedDict[_Key, UInt32] = OrderedDict()
        self._forced: OrderedDict[_Key, int] = OrderedDict()
        self._mask_bytes = tokenizer.vocab_size // 8
        self._endless = False  # there are too many states, or hardly any comes twice
        self._made = self._found = 0  # masks
        self._found_before = 0  # when the states were let go last
        self._full = False  # no more states until they are let go
        self._look(expression.start)

    @property
    def start(self) -> int:
        """The state before a text; NOTHING when none is known any more."""
        return NOTHING if self._endless else self._expression.start

    @property
    def era(self) -> int:
        """Grows when the numbers of states mean nothing any more."""
        return self._expression.era

    @property
    def held_bytes(self) -> int:
        """The memory that its states and masks take, about; any thread."""
        own = _STEP_BYTES * len(self._after) + self._mask_bytes * len(self._masks)
        return own if self.longer is None else own + self.longer.held_bytes

    def after(self, state: int, token: int) -> int:
        """Return the state behind one more token; NOTHING where it is not known."""
        place = state, token
        found = self._after.get(place)
        if found is None:
            found = self._after[place] = self._step(state, token)
        return found

    def size(self, token: int) -> int:
        """Return the bytes of a token that has led to a state."""
        return self._sizes.get(token, 0)

    def _step(self, state: int, token: int) -> int:
        if state == NOTHING or self._endless or self._full:
            return NOTHING
        if self._tokenizer.is_special_token(token):
            return NOTHING
        text = self._tokenizer.decode_bytes([token])
        self._sizes[token] = len(text)
        step = self._expression.after if self.longer is None else self._expression.along
        try:
            found = step(state, text) if text else NOTHING
            if found not in self._seen:
                self._look(found)
        except (UnsupportedRegexError, RecursionError):
            self._end()
            return NOTHING
        self._full = self._expression.full or len(self._after) >= _STEPS_MAX
        return found

    def tidy(self) -> None:
        """Let go of all states and masks if there is no room for more states: `era` tells."""
        if not self._full or self._endless:
            return
        if self._found - self._found_before < _WORTH:
            self._end()
            return
        self._forget()
        self._look(self._expression.start)

    def _end(self) -> None:
        """It costs more than it saves, or could."""
        self._endless = True
        self._forget()

    def _forget(self) -> None:
        self._found_before, self._full = self._found, False
        self._expression.tidy()
        for each in (self._after, self._sizes, self._seen, self._masks, self._forced):
            each.clear()

    def _look(self, state: int) -> None:
        """Find out what decides the masks of a state."""
        forced = self._expression.forced(state) if state != NOTHING else None
        if forced is not None:
            self._seen[state] = forced[0], self._expression.view(forced[1])

    def _key(self, state: int, token: int) -> _Key | None:
        seen = self._seen.get(state)
        return None if seen is None else (*seen, token if seen[0] else 0)

    def write(self, state: int, token: int, mask: UInt32) -> bool:
        """Write which tokens may come in a state, behind this token; return whether it is known.

        The token is of the text, -1 before the first.
        """
        key = self._key(state, token)
        if key is None:
            return False
        only = self._forced.get(key) if key[0] else None
        if only is not None:
            mask[:] = 0
            mask[only >> 5] = 1 << (only & 31)
        else:
            known = self._masks.get(key)
            if known is None:
                return False
            mask[:] = known
            self._masks.move_to_end(key)
        self._found += 1
        return True

    def note(self, state: int, token: int, mask: UInt32) -> None:
        """Keep a mask, made by llguidance; `write` tells what else is given."""
        key = self._key(state, token)
        if key is None:
            return
        only = _only(mask) if key[0] else None
        if only is not None:
            self._forced[key] = only
            if len(self._forced) > _FORCED_MAX:
                self._forced.popitem(last=False)
        else:
            self._masks[key] = mask.copy()
            if len(self._masks) > _MASKS_MAX:
                self._masks.popitem(last=False)
        self._made += 1
        if self._made > _TRIES and self._made > self._found:
            self._end()


def _only(mask: UInt32) -> int | None:
    """Return the one token that a mask allows; None: others, too."""
    words = np.flatnonzero(mask)
    word = int(mask[words[0]]) if len(words) == 1 else 0
    return int(words[0]) * 32 + word.bit_length() - 1 if word.bit_count() == 1 else None


def walk_of(
    source: str, tokenizer: LLTokenizer, reach: Callable[[], int], era: int = 0
) -> MaskCache | None:
    """Return the walk of a grammar in llguidance's words, if it is an expression that is read here.

    `reach` gives the longest token's length in bytes. The walk's eras begin with `era`.
    """
    found = json.loads(source) if source.startswith("{") else {}
    grammars = found.get("grammars", ())
    if len(grammars) != 1 or grammars[0].get("name") != "regex" or found.get("max_tokens"):
        return None
    text = str(grammars[0].get("lark_grammar"))
    if not (text.startswith(_BEGIN) and text.endswith(_END)):
        return None
    try:
        text, longest = text[len(_BEGIN) : -len(_END)], reach()
        longer = MaskCache(Expression(text, longest, era=era), tokenizer)
        return MaskCache(Expression(text, longest, near=True, era=era), tokenizer, longer)
    except (UnsupportedRegexError, RecursionError):
        return None
