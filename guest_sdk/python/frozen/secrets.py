"""Random numbers of the server."""

import _lip
from binascii import hexlify


def token_bytes(count=32):
    return _lip.random(count)


def token_hex(count=32):
    return hexlify(_lip.random(count)).decode()


def randbits(count):
    return int.from_bytes(_lip.random((count + 7) // 8), "little") & ((1 << count) - 1)


def randbelow(end):
    if end <= 0:
        raise ValueError("the end has to be positive")
    bits, value = _bits(end - 1), end
    while value >= end:
        value = randbits(bits)
    return value


def _bits(number):
    count = 0
    while number:
        number >>= 1
        count += 1
    return count


def choice(sequence):
    return sequence[randbelow(len(sequence))]
