"""Keys of KV: equal ones mean equal KV, and tenants never share one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_runtime.cluster.keys import (
    KEY_BYTES,
    KEY_TOKENS,
    Tokens,
    name_key,
    prefix_keys,
    session_key,
)


def tokens(count: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, 50_000, count, np.uint32)


@pytest.mark.parametrize(
    ("count", "keys"), [(0, 0), (KEY_TOKENS - 1, 0), (KEY_TOKENS, 1), (5 * KEY_TOKENS + 3, 5)]
)
def test_prefix_has_a_key_for_each_multiple(count: int, keys: int) -> None:
    found = prefix_keys("t", tokens(count))
    assert len(found) == len(set(found)) == keys
    assert all(len(key) == KEY_BYTES for key in found)


@given(st.integers(0, 6 * KEY_TOKENS), st.integers(0, 1 << 32))
def test_prefixes_share_keys_up_to_the_first_token_that_differs(common: int, seed: int) -> None:
    one = tokens(6 * KEY_TOKENS, seed)
    other = one.copy()
    other[common:] += 1
    shared = sum(
        a == b for a, b in zip(prefix_keys("t", one), prefix_keys("t", other), strict=True)
    )
    assert shared == common // KEY_TOKENS


def test_tenants_adapters_and_kinds_have_keys_of_their_own() -> None:
    data = tokens(KEY_TOKENS)
    keys = [
        prefix_keys("t", data)[0], prefix_keys("u", data)[0], prefix_keys("t", data, "a")[0],
        name_key("t", "a"), name_key("u", "a"), name_key("ta", ""), session_key("t", "a"),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)


def test_key_is_the_same_in_every_process() -> None:
    assert name_key("t", "docs/0").hex() == "83500915249430e4fa69e54eb2fce1c8"
