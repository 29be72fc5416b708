"""Seeds for calls that sample without a seed: unpredictable, but the same in a replay."""

import secrets
from hashlib import blake2b
from typing import Final

_KEY_BYTES: Final = 32
_SEED_BYTES: Final = 8


class Seeds:
    """A sequence of random u64. Each follows from a secret and from how many were drawn."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(_KEY_BYTES)
        self._drawn = 0

    def draw(self) -> int:
        self._drawn += 1
        number = self._drawn.to_bytes(_SEED_BYTES, "little")
        digest = blake2b(number, digest_size=_SEED_BYTES, key=self._secret).digest()
        return int.from_bytes(digest, "little")
