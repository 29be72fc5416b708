"""What waits at each node: shares of tenants, ties, nodes that come and go."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_runtime.cluster.loads import Loads, Speeds

SPEEDS = Speeds(1e-3, 1e-4)


def loads(*nodes: str, **weights: float) -> Loads:
    made = Loads(weights)
    for node in nodes:
        made.add_node(node, SPEEDS)
    return made


def test_finish_is_the_sum_where_a_tenant_is_alone() -> None:
    found = loads("n")
    found.add_work("n", "t", 3.0)
    assert found.finish_seconds(0, "t", 1.0) == pytest.approx(4.0)


def test_tenant_gets_its_share_of_a_flooded_node() -> None:
    found = loads("n", heavy=3.0)
    found.add_work("n", "flood", 100.0)
    assert found.finish_seconds(0, "t", 1.0) == pytest.approx(2.0)
    assert found.finish_seconds(0, "heavy", 1.0) == pytest.approx(4 / 3)
    assert found.finish_seconds(0, "flood", 1.0) == pytest.approx(101.0)
    found.add_work("n", "t", 2.0)
    assert found.finish_seconds(0, "t", 1.0) == pytest.approx(6.0)


def test_share_of_little_that_waits_is_all_of_it() -> None:
    found = loads("n")
    found.add_work("n", "other", 0.5)
    assert found.finish_seconds(0, "t", 10.0) == pytest.approx(10.5)


def test_cheapest_counts_what_a_tenant_itself_waits_for() -> None:
    """All nodes are flooded; the tenant waits for its own runs, not for the flood's."""
    found = loads("n1", "n2")
    found.add_work("n1", "flood", 100.0)
    found.add_work("n2", "flood", 101.0)
    found.add_work("n1", "t", 5.0)
    assert found.names[found.cheapest("t", 1.0, 7, 0.0)] == "n2"
    assert found.names[found.cheapest("flood", 1.0, 7, 0.0)] == "n2"


def test_cheapest_of_equal_nodes_is_the_keys_own() -> None:
    found = loads(*(f"n{number}" for number in range(50)))
    homes = [found.cheapest("t", 1.0, key, 1e-3) for key in range(200)]
    assert homes == [found.cheapest("t", 1.0, key, 1e-3) for key in range(200)]
    assert len(set(homes)) > 40
    assert all(found.rank(k, slot) >= found.rank(k, 0) for k, slot in enumerate(homes))


def test_node_that_is_gone_is_never_cheapest() -> None:
    found = loads("n1", "n2")
    found.add_work("n2", "t", 9.0)
    found.remove_node("n1")
    found.remove_node("n1")
    assert found.names[found.cheapest("t", 1.0, 7, 1e-3)] == "n2"
    assert found.names[found.cheapest("other", 1.0, 7, 1e-3)] == "n2"
    found.remove_node("n2")
    with pytest.raises(LookupError, match="no live node"):
        found.cheapest("t", 1.0, 7, 1e-3)
    found.add_node("n3", SPEEDS)
    assert found.waiting_seconds("n3") == 0.0
    found.check_integrity()


@pytest.mark.parametrize("bad", [(0.0, 1.0), (1.0, -1.0), (1.0, 1.0, -1.0)], ids=str)
def test_speeds_that_are_not_positive_are_refused(bad: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Speeds(*bad)


def test_node_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        loads("")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "remove", "join", "leave"]),
        st.integers(0, 39),
        st.sampled_from(["t", "u", "v"]),
        st.floats(0.0, 10.0),
    ),
    max_size=60,
)


@given(STEPS)
def test_totals_stay_the_sums_of_parts(steps: list[tuple[str, int, str, float]]) -> None:
    found = loads(u=0.5, v=4.0)
    parts: list[tuple[str, str, float]] = []
    for step, number, tenant, seconds in steps:
        node = f"n{number}"
        if step == "join":
            found.add_node(node, SPEEDS)
        elif step == "leave":
            found.remove_node(node)
            parts = [part for part in parts if part[0] != node]
        elif step == "add" and found.slots:
            node = sorted(found.slots)[number % len(found.slots)]
            found.add_work(node, tenant, seconds)
            parts.append((node, tenant, seconds))
        elif step == "remove" and parts:
            found.remove_work(*parts.pop(number % len(parts)))
        found.check_integrity()
    for node in found.slots:
        expected = math.fsum(seconds for at, _, seconds in parts if at == node)
        assert found.waiting_seconds(node) == pytest.approx(expected, abs=1e-6)
    if found.slots:
        times = [found.cost_seconds(slot, "t", 1.0) for slot in found.slots.values()]
        chosen = found.cost_seconds(found.cheapest("t", 1.0, 3, 0.0), "t", 1.0)
        assert chosen == pytest.approx(min(times), abs=1e-6)
