"""Walks: masks of a regular expression, each made once for all texts that have come to its state.

Only pure regular expressions have states that are known here (see `expressions`). Where a text can
go on in one way only, llguidance allows the token alone with which the tokenizer would go on: that
depends on the bytes that are forced, on what comes behind them, and on the token before them.
"""

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

from llguidance import LLTokenizer

from symphony_kernel.constraints.expressions import NOTHING, Expression, UnknownError
from symphony_kernel.executor.base import UInt32

_MASKS_MAX: Final = 64  # of one grammar, of either kind; a byte for each eight tokens
_STEPS_MAX: Final = 20_000
_TRIES: Final = 256  # masks, of which half should be known
_WORTH: Final = 1_000  # masks found, for which as many states are looked for as there is room for
_Key: TypeAlias = tuple[bytes, int, int]  # forced bytes, the view behind them, the token before
_BEGIN, _END = "start: /", "/"  # around an expression, in llguidance's grammar of it


class Walk:
    """The states of one grammar's texts, and the masks that are known. Of one thread."""

    def __init__(self, expression: Expression, tokenizer: LLTokenizer) -> None:
        self._expression = expression
        self._tokenizer = tokenizer
        self._after: dict[tuple[int, int], int] = {}  # by state and token
        self._seen: dict[int, tuple[bytes, int] | None] = {}  # by states: forced bytes and views
        # Used last at the end; and apart from them those of forced bytes, of which there are many.
        self._masks: OrderedDict[_Key, UInt32] = OrderedDict()
        self._forced: OrderedDict[_Key, UInt32] = OrderedDict()
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

    def after(self, state: int, token: int) -> int:
        """Return the state behind one more token; NOTHING where it is not known."""
        place = state, token
        found = self._after.get(place)
        if found is None:
            found = self._after[place] = self._step(state, token)
        return found

    def _step(self, state: int, token: int) -> int:
        if state == NOTHING or self._endless or self._full:
            return NOTHING
        if self._tokenizer.is_special_token(token):
            return NOTHING
        text = self._tokenizer.decode_bytes([token])
        try:
            found = self._expression.after(state, text) if text else NOTHING
            self._look(found)
        except (UnknownError, RecursionError):
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
        for each in (self._after, self._seen, self._masks, self._forced):
            each.clear()

    def _look(self, state: int) -> None:
        """Find out what decides the masks of a state."""
        forced = self._expression.forced(state) if state != NOTHING else None
        if forced is not None:
            self._seen[state] = forced[0], self._expression.view(forced[1])

    def _key(self, state: int, token: int) -> _Key | None:
        seen = self._seen.get(state)
        return None if seen is None else (*seen, token if seen[0] else 0)

    def mask(self, state: int, token: int) -> UInt32 | None:
        """Return which tokens may come in a state, behind this token, if that is known.

        The token is of the text, -1 before the first.
        """
        key = self._key(state, token)
        if key is None:
            return None
        masks = self._forced if key[0] else self._masks
        found = masks.get(key)
        if found is not None:
            masks.move_to_end(key)
            self._found += 1
        return found

    def note(self, state: int, token: int, mask: UInt32) -> None:
        """Keep a mask, made by llguidance; `mask` tells what else is given."""
        key = self._key(state, token)
        if key is None:
            return
        masks = self._forced if key[0] else self._masks
        masks[key] = mask.copy()
        self._made += 1
        if len(masks) > _MASKS_MAX:
            masks.popitem(last=False)
        if self._made > _TRIES and self._made > self._found:
            self._end()


def walk_of(source: str, tokenizer: LLTokenizer, reach: Callable[[], int]) -> Walk | None:
    """Return the walk of a grammar in llguidance's words, if it is an expression that is read here.

    `reach` gives the longest token's length in bytes.
    """
    found = json.loads(source) if source.startswith("{") else {}
    grammars = found.get("grammars", ())
    if len(grammars) != 1 or grammars[0].get("name") != "regex" or found.get("max_tokens"):
        return None
    text = str(grammars[0].get("lark_grammar"))
    if not (text.startswith(_BEGIN) and text.endswith(_END)):
        return None
    try:
        expression = Expression(text[len(_BEGIN) : -len(_END)], reach())
        return Walk(expression, tokenizer)
    except (UnknownError, RecursionError):
        return None
