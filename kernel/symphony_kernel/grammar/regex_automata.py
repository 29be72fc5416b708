"""Regular expressions as automata whose states are told apart as far as a token's length reaches.

llguidance makes masks from a state that it does not tell. Of a regular expression the state is what
may still come, another expression: the derivative (Brzozowski, "Derivatives of Regular
Expressions", 1964). It decides the mask, and of it no more than the longest token reaches: whether
"x" may come 4,711 times more or 4,712 times is the same to all tokens. So states that have the same
`view` have the same mask, which needs to be made once.

Near its beginning a text needs not be counted where an expression counts higher than any token
does: all its `near` states have the one count of many. They are few, however long the text.

Only what surely means the same to llguidance is read here: of ASCII and without Unicode's classes.
"""

from typing import Final, TypeAlias

NOTHING: Final = 0  # the state in which no text can come to be one of the expression's
_EMPTY: Final = 1  # the empty text, and no other
_PARTS_MAX: Final = 128  # of an expression: the recursion below is no deeper
_NODES_MAX: Final = 20_000  # a few megabytes: then all of them are let go
_PARTS_OF_NODES_MAX: Final = 12  # of all nodes together, for each of these
_STEPS_MAX: Final = 40_000
_GROWTH_MAX: Final = 200  # nodes for one token: an expression that has many states
_WORK_MAX: Final = 10_000  # looks at nodes for one token, of some tenths of a microsecond each
_COUNT_MAX: Final = 1_000_000
_MANY: Final = _COUNT_MAX + 1  # more than can be counted with one token and what it forces
_FORCED_MAX: Final = 64
_ENDLESS: Final = -1
_FAR: Final = 1 << 62  # bytes

_BYTES, _PAIR, _EITHER, _TIMES = range(4)
_Node: TypeAlias = tuple[int, ...]  # kind, and what it has: bits, or nodes and counts

_ASCII: Final = (1 << 128) - 1
_LITERAL: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 !\"%',/:;<=>@_`-&~#"
)
_ESCAPED: Final = frozenset("\\.+*?()|[]{}^$#&-~/\"'")
_CONTROLS: Final = {"n": 10, "r": 13, "t": 9}
_IN_CLASS: Final = _LITERAL - set("&~-") | set("+*?().{}|$")
# Of UTF-8, what is not ASCII: first bytes and how many [80-BF] follow, with the second's bounds.
_LONGER: Final = (
    (0xC2, 0xDF, 0x80, 0xBF, 0),
    (0xE0, 0xE0, 0xA0, 0xBF, 1),
    (0xE1, 0xEC, 0x80, 0xBF, 1),
    (0xED, 0xED, 0x80, 0x9F, 1),
    (0xEE, 0xEF, 0x80, 0xBF, 1),
    (0xF0, 0xF0, 0x90, 0xBF, 2),
    (0xF1, 0xF3, 0x80, 0xBF, 2),
    (0xF4, 0xF4, 0x80, 0x8F, 2),
)


class UnsupportedRegexError(ValueError):
    """The expression is not among those that are read here, or has too many states."""


class Expression:
    """An expression's states, by numbers, as far as they are known.

    Numbers hold while `era` is the same: when there are too many all are let go.
    """

    def __init__(self, text: str, reach: int, *, near: bool = False, era: int = 0) -> None:
        """Read an expression; `reach` is the longest token's length in bytes. UnknownError.

        With `near` its states are those of texts of at most `slack` bytes. `era`: the first one.
        """
        self._text = text
        self.reach = reach
        self._near = near
        self.slack = _FAR
        self.era = era
        self._begin()

    def _begin(self) -> None:
        self._allow(_NODES_MAX)
        self._parts = 0  # of all nodes
        self._numbers: dict[_Node, int] = {}
        self._nodes: list[_Node] = [(), ()]
        self._ends: list[bool] = [False, True]  # whether the empty text is one
        self._after: dict[tuple[int, int], int] = {}  # a byte
        self._behind: dict[tuple[int, bytes], int] = {}  # a text
        self._stopping: dict[tuple[int, bytes], tuple[int, ...]] = {}
        self._first: dict[int, int] = {}
        self._views: dict[int, int] = {}
        self.start = _Reader(self._text, self).read()

    @property
    def full(self) -> bool:
        """Whether there are too many states."""
        steps = len(self._after) + len(self._behind) + len(self._stopping)
        nodes = max(len(self._nodes), self._parts // _PARTS_OF_NODES_MAX)
        return nodes > _NODES_MAX or steps > _STEPS_MAX

    def tidy(self) -> None:
        """Let go of all states: `era` tells."""
        self._begin()
        self.era += 1

    def _allow(self, nodes: int) -> None:
        """Let what is done next make so many nodes, and look at so many: a stranger wrote it."""
        self._nodes_left, self._work_left = nodes, _WORK_MAX

    def _spend(self, work: int) -> None:
        self._work_left -= work
        if self._work_left < 0:
            raise UnsupportedRegexError("the expression takes too long")

    def after(self, state: int, text: bytes) -> int:
        """Return the state behind more text, or NOTHING. UnknownError when there are too many."""
        self._allow(_GROWTH_MAX)
        return self._through(state, text)

    def along(self, state: int, text: bytes) -> int:
        """Return the same as `after`, by a state for each byte: for few that come often."""
        self._allow(_GROWTH_MAX)
        for byte in text:
            state = self._derived(state, byte)
        return state

    def ends(self, state: int) -> bool:
        """Whether a text may end in a state."""
        return self._ends[state]

    def view(self, state: int) -> int:
        """Return what the next token can see of a state."""
        found = self._views.get(state)
        if found is None:
            self._spend(1)
            found = self._views[state] = self._seen(state)
        return found

    def forced(self, state: int) -> tuple[bytes, int] | None:
        """Return the bytes without which no text goes on, and the state behind them.

        None: there are too many of them.
        """
        self._allow(_GROWTH_MAX)
        found = bytearray()
        while len(found) <= _FORCED_MAX:
            firsts = 0 if self._ends[state] else self._firsts(state)
            if firsts.bit_count() != 1:
                return bytes(found), state
            found.append(firsts.bit_length() - 1)
            state = self._derived(state, found[-1])
        return None

    def _firsts(self, state: int) -> int:
        """Return the bytes that may come next, a bit each."""
        known = self._first.get(state)
        if known is not None:
            return known
        self._spend(1)
        kind, *parts = self._nodes[state] if state > _EMPTY else (_BYTES, 0)
        found = 0
        if kind == _BYTES:
            found = parts[0]
        elif kind == _EITHER:
            for part in parts:
                found |= self._firsts(part)
        else:
            found = self._firsts(parts[0])
            if kind == _PAIR and self._ends[parts[0]]:
                found |= self._firsts(parts[1])
        self._first[state] = found
        return found

    # -- Nodes ---------------------------------------------------------------------------------
    def _node(self, node: _Node, ends: bool) -> int:
        number = self._numbers.get(node)
        if number is None:
            self._nodes_left -= 1
            if self._nodes_left < 0:
                raise UnsupportedRegexError("the expression has too many states")
            self._parts += len(node)
            number = self._numbers[node] = len(self._nodes)
            self._nodes.append(node)
            self._ends.append(ends)
        return number

    def one_of(self, bits: int) -> int:
        """Return a byte of these."""
        return self._node((_BYTES, bits), False) if bits else NOTHING

    def pair(self, first: int, second: int) -> int:
        """Return one behind the other."""
        if NOTHING in (first, second):
            return NOTHING
        if first == _EMPTY or second == _EMPTY:
            return second if first == _EMPTY else first
        node = self._nodes[first]
        if node[0] == _PAIR:
            self._spend(1)
            return self.pair(node[1], self.pair(node[2], second))
        return self._node((_PAIR, first, second), self._ends[first] and self._ends[second])

    def either(self, *parts: int) -> int:
        """Return one of several."""
        found: set[int] = set()
        for part in parts:
            node = self._nodes[part]
            found.update(node[1:] if node and node[0] == _EITHER else (part,))
        found.discard(NOTHING)
        self._spend(len(found))
        if len(found) <= 1:
            return found.pop() if found else NOTHING
        ends = any(self._ends[part] for part in found)
        return self._node((_EITHER, *sorted(found)), ends)

    def times(self, part: int, least: int, most: int) -> int:
        """Return one from so many to so many times; `most` may be endless."""
        if most == 0 or part == _EMPTY:
            return _EMPTY
        if part == NOTHING:
            return NOTHING if least else _EMPTY
        if least == most == 1:
            return part
        if self._ends[part]:
            least = 0
        return self._node((_TIMES, part, least, most), not least)

    def count(self, part: int, count: int) -> int:
        """Return how often a part may, or must, come, as the states have it.

        A time that takes bytes is counted down once for each that has begun. So a high count is the
        same as many, until it is left with what a token, and what is forced, may take.
        """
        spare = count - (self.reach + 1) - (_FORCED_MAX + 1)
        if not self._near or spare <= 0 or self._ends[part]:
            return count
        self.slack = min(self.slack, spare * self._shortest(part))
        return _MANY

    def _shortest(self, state: int) -> int:
        """Return the bytes of the shortest text behind a state that is being read, or fewer."""
        if state <= _EMPTY:
            return 0
        kind, *parts = self._nodes[state]
        if kind == _PAIR:
            return sum(map(self._shortest, parts))
        if kind == _EITHER:
            return min(map(self._shortest, parts))
        return 1 if kind == _BYTES else min(parts[1], 1) * self._shortest(parts[0])

    def _through(self, state: int, text: bytes) -> int:
        """Return what may come behind a text: its parts' derivatives are the same in all states.

        As `_derived` byte by byte, but that this makes states of each byte, and of each count.
        """
        if state <= _EMPTY or not text:
            return NOTHING if text else state
        place = state, text
        found = self._behind.get(place)
        if found is not None:
            return found
        self._spend(1)
        kind, *parts = self._nodes[state]
        if kind == _BYTES:
            found = _EMPTY if len(text) == 1 and parts[0] >> text[0] & 1 else NOTHING
        elif kind == _EITHER:
            found = self.either(*(self._through(part, text) for part in parts))
        else:
            first = parts[0]
            left = parts[1] if kind == _PAIR else self._times_left(*parts)
            found = self.pair(self._through(first, text), left)
            for at in self._stops(first, text):
                if at or kind == _PAIR:
                    found = self.either(found, self._through(left, text[at:]))
        self._behind[place] = found
        return found

    def _stops(self, state: int, text: bytes) -> tuple[int, ...]:
        """Return how many bytes of a text are one from here on; but not all of them."""
        place = state, text
        found = self._stopping.get(place)
        if found is None:
            self._spend(len(text))
            stops, at_state = [], state
            for at, byte in enumerate(text):
                if self._ends[at_state]:
                    stops.append(at)
                at_state = self._derived(at_state, byte)
            found = self._stopping[place] = tuple(stops)
        return found

    def _times_left(self, part: int, least: int, most: int) -> int:
        left = most if most in (_ENDLESS, _MANY) else most - 1
        return self.times(part, least if least == _MANY else max(least - 1, 0), left)

    def _derived(self, state: int, byte: int) -> int:
        """Return what may come behind a byte."""
        if state <= _EMPTY:
            return NOTHING
        place = state, byte
        found = self._after.get(place)
        if found is None:
            self._spend(1)
            found = self._after[place] = self._derive(self._nodes[state], byte)
        return found

    def _derive(self, node: _Node, byte: int) -> int:
        kind = node[0]
        if kind == _BYTES:
            return _EMPTY if node[1] >> byte & 1 else NOTHING
        if kind == _PAIR:
            found = self.pair(self._derived(node[1], byte), node[2])
            if self._ends[node[1]]:
                found = self.either(found, self._derived(node[2], byte))
            return found
        if kind == _EITHER:
            return self.either(*(self._derived(part, byte) for part in node[1:]))
        once = self._derived(node[1], byte)
        return NOTHING if once == NOTHING else self.pair(once, self._times_left(*node[1:]))

    def _seen(self, state: int) -> int:
        """Return a state whose counts are no higher than a token can count."""
        node = self._nodes[state]
        if state <= _EMPTY or node[0] == _BYTES:
            return state
        if node[0] == _PAIR:
            return self.pair(self.view(node[1]), self.view(node[2]))
        if node[0] == _EITHER:
            return self.either(*map(self.view, node[1:]))
        _, part, least, most = node
        if not self._ends[part]:  # else a time may take no byte
            past = self.reach + 1
            least, most = min(least, past), most if most == _ENDLESS else min(most, past)
        return self.times(self.view(part), least, most)


class _Reader:
    """The syntax, as far as nobody can take it for anything else."""

    def __init__(self, text: str, made: Expression) -> None:
        self._text, self._made = text, made
        self._at = self._parts = 0

    def read(self) -> int:
        found = self._either()
        if self._at < len(self._text):
            raise UnsupportedRegexError("a ) too many")
        return found

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        found = self._next
        self._at += 1
        self._parts += 1
        if not found or self._parts > _PARTS_MAX:
            raise UnsupportedRegexError("it ends too early, or too late")
        return found

    def _comes(self, what: str) -> bool:
        if self._text.startswith(what, self._at):
            self._at += len(what)
            return True
        return False

    def _either(self) -> int:
        parts = [self._several()]
        while self._comes("|"):
            parts.append(self._several())
        return self._made.either(*parts)

    def _several(self) -> int:
        parts = []
        while self._next and self._next not in "|)":
            parts.append(self._repeated(self._part()))
        found = _EMPTY
        for part in reversed(parts):
            found = self._made.pair(part, found)
        return found

    def _part(self) -> int:
        what = self._take()
        if what == "(":
            if self._comes("?") and not self._comes(":"):
                raise UnsupportedRegexError("a group with a name or a flag")
            found = self._either()
            if not self._comes(")"):
                raise UnsupportedRegexError("a group without end")
            return found
        if what == "[":
            return self._class()
        if what == ".":
            return self._others(1 << 10)
        if what == "\\":
            return self._made.one_of(1 << self._escape())
        if what.isascii() and what not in _LITERAL:
            raise UnsupportedRegexError(what)
        found = _EMPTY
        for byte in reversed(what.encode()):
            found = self._made.pair(self._made.one_of(1 << byte), found)
        return found

    def _repeated(self, part: int) -> int:
        least, most = 1, 1
        if self._comes("*"):
            least, most = 0, _ENDLESS
        elif self._comes("+"):
            least, most = 1, _ENDLESS
        elif self._comes("?"):
            least, most = 0, 1
        elif self._comes("{"):
            least = most = self._number()
            if self._comes(","):
                most = _ENDLESS if self._next == "}" else self._number()
            if not self._comes("}") or (most != _ENDLESS and most < least):
                raise UnsupportedRegexError("a count")
        else:
            return part
        if self._next and self._next in "*+?{":
            raise UnsupportedRegexError(
                "a repetition of a repetition, or few times rather than many"
            )
        made = self._made
        return made.times(part, made.count(part, least), made.count(part, most))

    def _number(self) -> int:
        first = self._at
        while self._next.isdigit() and self._next.isascii():
            self._at += 1
        digits = self._text[first : self._at]
        if not digits or len(digits) > 7 or int(digits) > _COUNT_MAX:
            raise UnsupportedRegexError("a count")
        return int(digits)

    def _class(self) -> int:
        """Read what is between [ and ], and that."""
        negated = self._comes("^")
        bits = 0
        while not self._comes("]"):
            first = last = self._member()
            if self._next == "-":
                self._take()
                last = self._member()
            if last < first:
                raise UnsupportedRegexError("a range")
            bits |= (1 << last + 1) - (1 << first)
        if not bits:
            raise UnsupportedRegexError("an empty class")
        return self._others(bits) if negated else self._made.one_of(bits)

    def _member(self) -> int:
        what = self._take()
        if what == "\\":
            return self._escape()
        if what not in _IN_CLASS:
            raise UnsupportedRegexError(what)
        return ord(what)

    def _escape(self) -> int:
        what = self._take()
        if what in _CONTROLS:
            return _CONTROLS[what]
        if what not in _ESCAPED:
            raise UnsupportedRegexError("\\" + what)
        return ord(what)

    def _others(self, bits: int) -> int:
        """Return any character but these of ASCII, in UTF-8."""
        made = self._made

        def span(first: int, last: int) -> int:
            return made.one_of((1 << last + 1) - (1 << first))

        parts = [made.one_of(_ASCII & ~bits)]
        for first, last, second, until, more in _LONGER:
            part = made.pair(span(first, last), span(second, until))
            for _ in range(more):
                part = made.pair(part, span(0x80, 0xBF))
            parts.append(part)
        return made.either(*parts)
