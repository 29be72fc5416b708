"""The directory: expiry, leases, bounds of memory by tenant, and indices that agree."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_runtime.cluster.directory import Directory
from symphony_runtime.cluster.keys import KEY_TOKENS, name_key, prefix_keys

from tests.runtime.cluster.test_keys import tokens

A, B = name_key("t", "a"), name_key("t", "b")


class Time:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def directory(time: Time, *nodes: str, **given: float) -> Directory:
    made = Directory(time, int(given.pop("holdings_max", 100)), **given)
    for node in nodes:
        made.renew_lease(node)
    return made


def test_holders_are_those_that_reported_the_key() -> None:
    found = directory(Time(), "n1", "n2")
    found.hold("n1", "t", A, 10)
    found.hold("n2", "t", A, 20)
    found.hold("n2", "t", B, 30)
    assert found.holders(A) == {"n1": 10, "n2": 20}
    found.release("n2", A)
    found.release("n2", A)
    found.release("nowhere", A)
    assert found.holders(A) == {"n1": 10}
    found.hold("n1", "t", A, 16)
    assert found.holders(A) == {"n1": 16}
    found.check_integrity()


def test_holding_expires_unless_it_is_reported_again() -> None:
    time = Time()
    found = directory(time, "n", expiry_s=10.0, lease_s=100.0)
    found.hold("n", "t", A, 1)
    found.hold("n", "t", B, 1)
    time.seconds = 6.0
    found.hold("n", "t", A, 1)
    time.seconds = 12.0
    assert found.expire() == []
    assert found.holders(A) == {"n": 1}
    assert found.holders(B) == {}
    assert found.statistics().expired == 1
    found.check_integrity()


def test_node_that_dies_loses_its_holdings_and_no_other() -> None:
    time = Time()
    found = directory(time, "n1", "n2", lease_s=5.0)
    found.hold("n1", "t", A, 1)
    found.hold("n2", "t", A, 2)
    time.seconds = 4.0
    found.renew_lease("n2")
    time.seconds = 6.0
    assert found.expire() == ["n1"]
    assert found.holders(A) == {"n2": 2}
    assert found.statistics().lost == 1
    with pytest.raises(KeyError, match="no lease"):
        found.hold("n1", "t", A, 1)
    found.renew_lease("n1")
    assert found.holders(A) == {"n2": 2}, "it returns with nothing"
    found.check_integrity()


def test_tenant_that_floods_evicts_its_own_holdings() -> None:
    time = Time()
    found = directory(time, "n", holdings_max=64)
    keys = [name_key("quiet", str(number)) for number in range(16)]
    for key in keys:
        found.hold("n", "quiet", key, 1)
    for number in range(1_000):
        found.hold("n", "flood", name_key("flood", str(number)), 1)
        assert found.statistics().holdings <= 64
    assert all(found.holders(key) for key in keys)
    assert found.holders(name_key("flood", "999"))
    assert not found.holders(name_key("flood", "0"))
    found.check_integrity()


def test_memory_is_bounded() -> None:
    """A holding takes less than a kilobyte, and a flood takes no more than the bound allows."""
    found = directory(Time(), *(f"n{number}" for number in range(8)), holdings_max=2_000)
    tracemalloc.start()
    for number in range(20_000):
        found.hold(f"n{number % 8}", f"t{number % 3}", name_key(f"t{number % 3}", str(number)), 1)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1_000 * 2_000
    assert found.statistics().evicted >= 18_000


def test_key_of_another_tenant_is_refused() -> None:
    found = directory(Time(), "n")
    found.hold("n", "t", A, 1)
    with pytest.raises(ValueError, match="is of tenant t, not u"):
        found.hold("n", "u", A, 1)
    with pytest.raises(ValueError, match="at least 1 token"):
        found.hold("n", "t", A, 0)


@pytest.mark.parametrize(
    "bad", [{"holdings_max": 0}, {"expiry_s": 0.0}, {"lease_s": -1.0}], ids=str
)
def test_bounds_that_are_not_positive_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        directory(Time(), **bad)


def test_prefix_is_found_at_each_node_as_long_as_it_is_there() -> None:
    found = directory(Time(), "long", "short", "other")
    keys = prefix_keys("t", tokens(8 * KEY_TOKENS))
    for node, held in (("long", 6), ("short", 2)):
        for count, key in enumerate(keys[:held], 1):
            found.hold(node, "t", key, count * KEY_TOKENS)
    assert found.held_prefix(keys, 8) == {"long": 6 * KEY_TOKENS, "short": 2 * KEY_TOKENS}
    assert found.held_prefix(keys, 1) == {"long": 6 * KEY_TOKENS}
    assert found.held_prefix(prefix_keys("u", tokens(8 * KEY_TOKENS)), 8) == {}


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["hold", "hold", "hold", "release", "renew", "drop", "wait"]),
        st.sampled_from(["n1", "n2", "n3"]),
        st.sampled_from(["t", "u"]),
        st.integers(0, 12),
    ),
    max_size=80,
)


@given(CALLS)
def test_directory_says_what_a_plain_model_says(calls: list[tuple[str, str, str, int]]) -> None:
    time = Time()
    found = directory(time, holdings_max=1_000, expiry_s=9.0, lease_s=6.0)
    leases: dict[str, float] = {}
    held: dict[tuple[bytes, str], float] = {}
    for call, node, tenant, number in calls:
        key = name_key(tenant, str(number))
        if call == "renew":
            found.renew_lease(node)
            leases[node] = time.seconds + 6.0
        elif call == "hold" and node in leases:
            found.hold(node, tenant, key, 1)
            held[key, node] = time.seconds + 9.0
        elif call == "release":
            found.release(node, key)
            held.pop((key, node), None)
        elif call == "drop":
            found.drop_node(node)
            leases.pop(node, None)
        elif call == "wait":
            time.seconds += number / 2
            found.expire()
            leases = {n: until for n, until in leases.items() if until > time.seconds}
        held = {
            (k, n): until for (k, n), until in held.items() if n in leases and until > time.seconds
        }
        found.check_integrity()
    for each in {key for key, _ in held}:
        assert set(found.holders(each)) == {node for key, node in held if key == each}
    assert found.statistics().holdings == len(held)
