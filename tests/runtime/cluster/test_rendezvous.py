"""Rendezvous hashing: scalars and arrays agree, and nodes that come and go move little."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from symphony_runtime.cluster.rendezvous import hash64, weight, weights

HASHES = st.integers(0, (1 << 64) - 1)
KEYS = [hash64(b"key %d" % number) for number in range(4_000)]


def first(key: int, nodes: list[str]) -> str:
    return max(nodes, key=lambda node: weight(key, hash64(node.encode())))


@given(HASHES, st.lists(HASHES, min_size=1, max_size=20))
def test_weights_of_an_array_equal_those_of_its_elements(key: int, nodes: list[int]) -> None:
    assert weights(key, np.array(nodes, np.uint64)).tolist() == [weight(key, n) for n in nodes]


def test_node_that_leaves_moves_only_its_own_keys() -> None:
    nodes = [f"node {number}" for number in range(20)]
    for key in KEYS[:500]:
        home = first(key, nodes)
        for gone in nodes[:5]:
            now = first(key, [node for node in nodes if node != gone])
            assert now == home or home == gone


def test_keys_spread_evenly() -> None:
    nodes = [f"node {number}" for number in range(20)]
    counts = Counter(first(key, nodes) for key in KEYS)
    assert len(counts) == 20
    assert max(counts.values()) < 1.4 * len(KEYS) / 20
    assert min(counts.values()) > 0.6 * len(KEYS) / 20


def test_hash_is_the_same_in_every_process() -> None:
    assert hash64(b"docs/0") == 0xD64346A735369588
