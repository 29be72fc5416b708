"""Numbers as the ABI's bytes, and records of what calls return."""

import _lip
from collections import namedtuple

Choice = namedtuple("Choice", ("token", "logprob"))
Scored = namedtuple("Scored", ("choice", "best"))


class Record:
    """A value with named parts."""

    def __init__(self, **parts):
        for name, value in parts.items():
            setattr(self, name, value)

    def __repr__(self):
        parts = ", ".join("%s=%r" % part for part in sorted(self.__dict__.items()))
        return "%s(%s)" % (type(self).__name__, parts)

    def __eq__(self, other):
        return type(self) is type(other) and self.__dict__ == other.__dict__


class TokenSet:
    """A set of tokens of a vocabulary, as a mask for `allowed_tokens` and its like."""

    def __init__(self, tokens, vocab_size):
        mask = bytearray((vocab_size + 7) // 8)
        for token in tokens:
            mask[token // 8] |= 1 << token % 8
        self.mask = bytes(mask)

    def __contains__(self, token):
        at = token // 8
        return at < len(self.mask) and bool(self.mask[at] >> token % 8 & 1)


def options(given):
    """Return options in MessagePack; nothing at all if they are the defaults."""
    return _lip.options(given) if given else b""


def choice(packed):
    return Choice(*_lip.choices(packed)[0])


def choices(packed):
    return [Choice(*pair) for pair in _lip.choices(packed)]


def scored(packed):
    all_ = choices(packed)
    return Scored(all_[0], all_[1:])


def floats(packed):
    return list(vector(packed))


def vector(packed):
    """Return f32 numbers as an `array`."""
    from array import array

    return array("f", packed)


def split(packed, places, read):
    """Return the results of so many places, all of the same size."""
    if not places:
        return []
    size = len(packed) // places
    return [read(packed[at : at + size]) for at in range(0, size * places, size or 1)]
