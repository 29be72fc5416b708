"""Placement: by KV, family and session; stable ties, no starvation, little movement."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_runtime.cluster.directory import Directory
from symphony_runtime.cluster.keys import KEY_TOKENS, name_key, prefix_keys
from symphony_runtime.cluster.loads import Loads, Speeds
from symphony_runtime.cluster.placement import (
    SESSION_PATIENCE_S,
    TIE_S,
    Need,
    Placement,
    Placer,
    Run,
)

from tests.runtime.cluster.test_directory import Time
from tests.runtime.cluster.test_keys import tokens

SPEEDS = Speeds(1e-3, 1e-4)  # a second for 1,000 tokens of a prompt
MOVING = Speeds(1e-3, 1e-4, move_token_s=1e-4, move_s=0.01)


def placer(count: int = 4, speeds: Speeds = SPEEDS, **given: float) -> Placer:
    time = Time()
    weights = {name: weight for name, weight in given.items() if name != "seed"}
    seed = int(given.get("seed", 0))
    made = Placer(time, Directory(time), Loads(weights), seed)
    for number in range(count):
        made.add_node(f"n{number}", speeds)
    return made


def document(number: int, size: int = 4_000) -> Need:
    return Need((name_key("t", f"docs/{number}"),), size)


def question(number: int, tenant: str = "t", **given: str) -> Run:
    return Run(tenant, (document(number),), 50, 16, **given)


def finish(placed: Placer, placement: Placement) -> None:
    placed.computed(placement)
    placed.ended(placement)


# -- KV ----------------------------------------------------------------------------------------
def test_run_goes_where_its_document_is() -> None:
    found = placer()
    found.directory.hold("n2", "t", document(1).keys[0], 4_000)
    placement = found.place(question(1))
    assert placement.node == "n2"
    assert placement.prefill_s == pytest.approx(0.05)
    assert found.statistics().by_kv == 1
    assert found.statistics().scans == 0, "no other node can be better"


def test_run_goes_where_most_of_its_prefix_is() -> None:
    found, data = placer(), tokens(10 * KEY_TOKENS)
    need = Need(prefix_keys("t", data), len(data))
    for node, held in (("n1", 3), ("n3", 9)):
        for count, key in enumerate(need.keys[:held], 1):
            found.directory.hold(node, "t", key, count * KEY_TOKENS)
    placement = found.place(Run("t", (need,)))
    assert placement.node == "n3"
    assert placement.prefill_s == pytest.approx(KEY_TOKENS * 1e-3)
    assert found.directory.holders(need.keys[-1]) == {"n3": 10 * KEY_TOKENS}


def test_run_that_needs_two_documents_goes_to_the_larger() -> None:
    found = placer()
    small, large = document(1, 500), document(2, 3_000)
    found.directory.hold("n0", "t", small.keys[0], 500)
    found.directory.hold("n3", "t", large.keys[0], 3_000)
    placement = found.place(Run("t", (small, large), 50))
    assert placement.node == "n3"
    assert placement.prefill_s == pytest.approx(0.55)


def test_runs_of_a_new_document_that_come_together_share_it() -> None:
    found = placer()
    assert len({found.place(question(1)).node for _ in range(4)}) == 1


def test_crowd_for_one_document_spreads_once_waiting_takes_longer_than_computing() -> None:
    found = placer()
    nodes = [found.place(question(1)).node for _ in range(300)]
    assert len(set(nodes)) == 4
    assert len(set(nodes[:20])) == 1, "a question takes 50 ms, the document 4 s"
    assert len(set(nodes[:40])) == 2, "a question delays 40 others by 2 s"


def test_kv_of_a_public_file_is_its_owners() -> None:
    found = placer()
    shared = Need((name_key("library", "a"),), 100, owner="library")
    node = found.place(Run("t", (shared,))).node
    assert found.place(Run("u", (shared,))).node == node


def test_kv_is_moved_where_that_is_cheaper() -> None:
    found = placer(speeds=MOVING)
    found.directory.hold("n0", "t", document(1).keys[0], 4_000)
    found.loads.add_work("n0", "t", 2.0)  # where the document is
    placement = found.place(question(1))
    assert placement.node != "n0"
    assert placement.moves == ((document(1), "n0"),)
    assert placement.moves_s == pytest.approx(0.41)
    assert placement.prefill_s == pytest.approx(0.05)


def test_short_kv_is_computed_and_not_moved() -> None:
    found = placer(speeds=MOVING)
    found.directory.hold("n0", "t", document(1).keys[0], 5)
    found.loads.add_work("n0", "t", 50.0)
    placement = found.place(Run("t", (document(1, 5),)))
    assert placement.node != "n0"
    assert placement.moves == ()


def test_part_of_a_file_is_no_source_of_a_move() -> None:
    found = placer(speeds=MOVING)
    found.directory.hold("n0", "t", document(1).keys[0], 3_999)
    found.loads.add_work("n0", "t", 50.0)
    assert found.place(question(1)).moves == ()


# -- Families and sessions ---------------------------------------------------------------------
def test_family_stays_together_whatever_waits_there() -> None:
    found = placer()
    parent = found.place(question(1))
    found.loads.add_work(parent.node, "t", 1_000.0)
    assert found.place(question(2, beside=parent.node)).node == parent.node
    assert found.statistics().by_family == 1


def test_family_whose_node_is_gone_is_an_error() -> None:
    found = placer()
    found.remove_node("n1")
    with pytest.raises(LookupError, match="n1 of the run's family is gone"):
        found.place(question(1, beside="n1"))


def test_session_returns_until_another_node_is_much_sooner() -> None:
    found = placer()
    run = Run("t", prompt_tokens=100, session="s")
    first = found.place(run)
    finish(found, first)
    found.loads.add_work(first.node, "t", 0.9 * SESSION_PATIENCE_S)
    again = found.place(run)
    assert again.node == first.node
    finish(found, again)
    found.loads.add_work(first.node, "t", 0.2 * SESSION_PATIENCE_S)
    assert found.place(run).node != first.node


def test_session_of_another_tenant_is_another_session() -> None:
    found = placer(32)
    homes = {tenant: found.place(Run(tenant, session="s")).node for tenant in "abcdefgh"}
    assert len(set(homes.values())) > 1


def test_session_whose_node_dies_gets_another() -> None:
    found = placer()
    run = Run("t", prompt_tokens=10, session="s")
    first = found.place(run)
    found.remove_node(first.node)
    assert found.place(run).node != first.node
    finish(found, first)
    found.loads.check_integrity()


# -- Ties and movement -------------------------------------------------------------------------
def homes(found: Placer, count: int = 300) -> list[str]:
    """Return where documents go that no node holds yet, each alone on an idle cluster."""
    nodes = []
    for number in range(count):
        placement = found.place(question(number))
        finish(found, placement)
        found.directory.release(placement.node, document(number).keys[0])
        nodes.append(placement.node)
    return nodes


def test_placers_that_know_nothing_of_each_other_agree() -> None:
    assert homes(placer(20, seed=1)) == homes(placer(20, seed=2))


def test_node_that_joins_takes_only_what_is_its_own() -> None:
    found = placer(10)
    before = homes(found)
    found.add_node("new", SPEEDS)
    after = homes(found)
    moved = [now for was, now in zip(before, after, strict=True) if was != now]
    assert set(moved) == {"new"}
    assert len(moved) < 2 * 300 / 11


def test_node_that_leaves_moves_only_what_it_had() -> None:
    found = placer(10)
    before = homes(found)
    found.remove_node("n3")
    after = homes(found)
    pairs = zip(before, after, strict=True)
    assert all(was == "n3" for was, now in pairs if was != now)


def test_document_stays_where_it_is_when_a_node_joins() -> None:
    found = placer(4)
    before = []
    for number in range(100):
        before.append(found.place(question(number)))
        finish(found, before[-1])
    found.add_node("new", SPEEDS)
    after = [found.place(question(number)).node for number in range(20)]
    assert after == [placement.node for placement in before[:20]]


def test_scores_within_a_tie_go_to_one_node() -> None:
    found = placer(8)
    for number in range(8):
        found.loads.add_work(f"n{number}", "t", 0.9 * TIE_S * number / 8)
    assert homes(found) == homes(placer(8))


# -- Shares and starvation ---------------------------------------------------------------------
def test_tenant_leaves_a_flooded_node_only_for_less_than_its_share_gives() -> None:
    """The flood has 100 s of work there; a share of a half makes 50 ms of it 100 ms."""
    found = placer()
    found.directory.hold("n0", "t", document(1).keys[0], 4_000)
    found.loads.add_work("n0", "flood", 100.0)
    assert found.place(question(1)).node == "n0"
    shared = Need(document(1).keys, 4_000, owner="t")
    own = Run("flood", (shared,), 50, 16)
    assert found.place(own).node != "n0", "it waits for all of its own"


RUNS = st.lists(
    st.tuples(
        st.sampled_from(["t", "u", "flood"]), st.integers(0, 5), st.integers(0, 3), st.booleans()
    ),
    min_size=1,
    max_size=80,
)


@settings(max_examples=50)
@given(RUNS, st.integers(1, 6), st.booleans())
def test_no_run_waits_longer_than_the_idlest_node_would_make_it(
    runs: list[tuple[str, int, int, bool]], nodes: int, moving: bool
) -> None:
    """Popular KV and sessions starve no run: computing all on another node bounds its score."""
    found = placer(nodes, MOVING if moving else SPEEDS, u=0.25)
    placements: list[Placement] = []
    for tenant, number, session, ends in runs:
        run = question(number, tenant, session=f"s{session}" if session else "")
        run = Run(run.tenant, (Need(document(number).keys, 4_000, "t"),), 50, 16, run.session)
        alone = 4_050 * 1e-3 + 16 * 1e-4
        bound = min(
            found.loads.cost_seconds(slot, tenant, alone) for slot in found.loads.slots.values()
        )
        placements.append(found.place(run))
        assert placements[-1].score_s <= bound + TIE_S + SESSION_PATIENCE_S * bool(session)
        if ends:
            finish(found, placements.pop(0))
        found.loads.check_integrity()
        found.directory.check_integrity()
    for placement in placements:
        finish(found, placement)
    assert all(found.loads.waiting_seconds(node) == 0.0 for node in found.loads.slots)


# -- Accounts ----------------------------------------------------------------------------------
def test_runs_of_a_node_that_returned_are_not_taken_off_twice() -> None:
    found = placer(1)
    old = found.place(question(1))
    found.remove_node("n0")
    found.add_node("n0", SPEEDS)
    new = found.place(question(1))
    finish(found, old)
    finish(found, old)
    assert found.loads.waiting_seconds("n0") == pytest.approx(new.prefill_s + new.decode_s)


def test_no_live_node_is_an_error() -> None:
    with pytest.raises(LookupError, match="no live node"):
        placer(0).place(question(1))


def test_expired_node_is_forgotten_with_its_runs() -> None:
    time = Time()
    found = Placer(time, Directory(time, lease_s=5.0), Loads())
    found.add_node("n0", SPEEDS)
    placement = found.place(Run("t", session="s"))
    time.seconds = 6.0
    assert found.expire() == ["n0"]
    finish(found, placement)
    with pytest.raises(LookupError):
        found.place(question(1))
    time.seconds = 10_000.0
    found.expire()
    assert found.statistics().sessions == 0


def test_sessions_are_bounded() -> None:
    time = Time()
    found = Placer(time, Directory(time), Loads(), sessions_max=10)
    found.add_node("n0", SPEEDS)
    for number in range(50):
        found.place(Run("t", session=str(number)))
    assert found.statistics().sessions == 10


@pytest.mark.parametrize("bad", [((), 1), ((b"k",), 0)], ids=str)
def test_need_without_keys_or_tokens_is_refused(bad: tuple[tuple[bytes, ...], int]) -> None:
    with pytest.raises(ValueError, match="a need has keys"):
        Need(*bad)
