"""Matchers that are kept: how many, whose, and which of them go."""

import gc
import weakref
from typing import Any

import numpy as np
from symphony_kernel.grammar.matcher_cache import MatcherCache


class Matcher:
    """As much of one as is kept."""

    def deep_copy(self) -> "Matcher":
        return self


def text(tokens: int, first: int = 0) -> bytes:
    return np.arange(first, first + tokens, dtype=np.uint32).tobytes()


def keep(kept: MatcherCache, tenant: str, number: int, what: bytes, before: bytes = b"") -> Any:
    matcher: Any = Matcher()
    kept.keep(tenant, number, what, matcher, before)
    return matcher


def test_texts_have_room_by_their_lengths_a_tenants_and_all_together() -> None:
    kept = MatcherCache(tenant_tokens=4_000, tokens=6_000)
    for number in range(9):
        keep(kept, "a", number, text(1_000))
    assert kept.tokens == {"a": 4_000}
    assert kept.find("a", 4, text(1_000)) is None
    assert kept.find("a", 5, text(1_000)) is not None, "that one is used: it goes last"
    for number in range(3):
        keep(kept, "b", number, text(1_000))
    assert kept.tokens == {"a": 3_000, "b": 3_000}
    assert kept.find("a", 5, text(1_000)) is not None
    assert kept.find("b", 5, text(1_000)) is None, "another tenant's"
    keep(kept, "a", 1, text(4_001))
    assert kept.tokens["a"] == 3_000, "what is too long goes nowhere, and nothing goes for it"
    many = MatcherCache(tenant_tokens=4_000, tokens=6_000)
    for number in range(100):
        keep(many, "a", number, text(1))
    assert 0 < len(many) < 20, "short ones count, too"


def test_of_a_text_that_grows_the_last_two_stay() -> None:
    kept = MatcherCache()
    for length in range(1, 50):
        keep(kept, "a", 1, text(length), text(length - 1))
    assert len(kept) == 2
    fork = text(49) + text(1, 7)
    keep(kept, "a", 1, fork, text(49))
    assert kept.find("a", 1, text(49)) is not None, "other forks begin with it"
    assert kept.find("a", 1, fork) is not None
    assert len(kept) == 2


def test_what_is_over_is_let_go() -> None:
    kept = MatcherCache()
    gone = weakref.ref(keep(kept, "a", 1, text(9)))
    kept.drop_generation(1)
    keep(kept, "a", 2, text(9))
    gc.collect()
    assert gone() is None
    assert len(kept) == 1


def test_sweep_lets_go_of_an_era_that_is_over_though_nothing_is_kept_since() -> None:
    kept = MatcherCache()
    keep(kept, "t", 1, text(5))
    keep(kept, "t", 2, text(5))
    kept.drop_generation(1)
    assert len(kept) == 2
    kept.sweep()
    assert (len(kept), kept.find("t", 1, text(5))) == (1, None)
