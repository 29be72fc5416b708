"""The matcher cache: how many it keeps, for which tenants, and which it drops."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from symphony_kernel.grammar.matcher_cache import MatcherCache


class Matcher:
    """The part of a matcher that the cache uses."""

    def deep_copy(self) -> "Matcher":
        return self


def text(tokens: int, first: int = 0) -> bytes:
    return np.arange(first, first + tokens, dtype=np.uint32).tobytes()


def keep(kept: MatcherCache, tenant: str, number: int, what: bytes, before: bytes = b"") -> Any:
    matcher: Any = Matcher()
    kept.keep(tenant, number, what, matcher, before)
    return matcher


def test_texts_are_kept_by_length_within_both_budgets() -> None:
    kept = MatcherCache(tenant_tokens=4_000, tokens=6_000)
    for number in range(9):
        keep(kept, "a", number, text(1_000))
    assert kept.tokens == {"a": 4_000}
    assert kept.find("a", 4, text(1_000)) is None
    assert kept.find("a", 5, text(1_000)) is not None, "it was used, so it is dropped last"
    for number in range(3):
        keep(kept, "b", number, text(1_000))
    assert kept.tokens == {"a": 3_000, "b": 3_000}
    assert kept.find("a", 5, text(1_000)) is not None
    assert kept.find("b", 5, text(1_000)) is None, "another tenant's"
    keep(kept, "a", 1, text(4_001))
    assert kept.tokens["a"] == 3_000, "a text over the limit is not kept and drops no other"
    many = MatcherCache(tenant_tokens=4_000, tokens=6_000)
    for number in range(100):
        keep(many, "a", number, text(1))
    assert 0 < len(many) < 20, "each short one counts, too"


def test_text_that_grows_keeps_its_last_two_matchers() -> None:
    kept = MatcherCache()
    for length in range(1, 50):
        keep(kept, "a", 1, text(length), text(length - 1))
    assert len(kept) == 2
    fork = text(49) + text(1, 7)
    keep(kept, "a", 1, fork, text(49))
    assert kept.find("a", 1, text(49)) is not None, "other forks begin with it"
    assert kept.find("a", 1, fork) is not None
    assert len(kept) == 2


@pytest.mark.parametrize("swept", [False, True])
def test_matchers_of_a_dropped_generation_are_freed(swept: bool) -> None:
    kept = MatcherCache()
    gone = weakref.ref(keep(kept, "a", 1, text(9)))
    keep(kept, "a", 2, text(9))
    kept.drop_generation(1)
    assert len(kept) == 2
    if swept:
        kept.sweep()
    else:
        keep(kept, "a", 2, text(9))
    gc.collect()
    assert gone() is None
    assert (len(kept), kept.find("a", 1, text(9))) == (1, None)
