"""Rendezvous hashing: each key has an order of the nodes that all placers agree on.

The node with the highest weight for a key comes first (Thaler and Ravishankar, "Using Name-Based
Mappings to Increase Hit Rates", 1998). A node that leaves moves only the keys that it came first
for, and a node that joins takes only keys that it comes first for.
"""

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]

_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64's finalizer
_MASK = (1 << 64) - 1


def hash64(value: bytes) -> int:
    """Return 64 bits that are the same in every process."""
    return int.from_bytes(blake2b(value, digest_size=8).digest(), "little")


def weight(key: int, node: int) -> int:
    """Return a node's weight for a key; both are 64-bit hashes."""
    x = key ^ node
    x = (x ^ (x >> 30)) * _FACTORS[0] & _MASK
    x = (x ^ (x >> 27)) * _FACTORS[1] & _MASK
    return x ^ (x >> 31)


def weights(key: int, nodes: UInt64) -> UInt64:
    """Return what `weight` returns, for an array [n] of nodes."""
    x = nodes ^ np.uint64(key)
    x ^= x >> np.uint64(30)
    x *= np.uint64(_FACTORS[0])
    x ^= x >> np.uint64(27)
    x *= np.uint64(_FACTORS[1])
    x ^= x >> np.uint64(31)
    return x
