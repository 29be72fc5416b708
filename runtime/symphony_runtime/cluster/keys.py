"""Keys of KV in a cluster: 16 bytes that stand for a name, or for a prefix of tokens.

A key is a digest that begins with its tenant, so no tenant finds another's prefixes. A public file
has one key, its owner's.
"""

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
from symphony_kernel.protocol.limits import PAGE_TOKENS

KEY_BYTES = 16
# A prefix has a key at each multiple. Fewer keys than pages keep the directory small; the score of
# a node is wrong by less than these tokens.
KEY_TOKENS = 8 * PAGE_TOKENS

Tokens = npt.NDArray[np.uint32]


def name_key(owner: str, path: str) -> bytes:
    """Return the key of the named file at this path of its owner's tree."""
    return _digest(b"name", owner, path).digest()


def session_key(tenant: str, session: str) -> bytes:
    """Return the key of what a session of a tenant left behind."""
    return _digest(b"session", tenant, session).digest()


def prefix_keys(tenant: str, tokens: Tokens, adapter: str = "") -> tuple[bytes, ...]:
    """Return a key for each multiple of KEY_TOKENS of these tokens ([n], u32), shortest first.

    Equal keys mean equal tokens from position 0 on, computed by the same adapter ("": none).
    """
    digest, keys = _digest(b"prefix", tenant, adapter), []
    data = tokens.astype("<u4", copy=False).tobytes()
    for end in range(4 * KEY_TOKENS, len(data) + 1, 4 * KEY_TOKENS):
        digest.update(data[end - 4 * KEY_TOKENS : end])
        keys.append(digest.copy().digest())
    return tuple(keys)


def _digest(kind: bytes, *parts: str) -> blake2b:
    """Return a digest of parts that cannot run into each other."""
    digest = blake2b(kind, digest_size=KEY_BYTES)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest
