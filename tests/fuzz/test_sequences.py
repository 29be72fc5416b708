"""A short, seeded part of the fuzzer's cases of calls, and that it would find what it looks for."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_runtime.abi import table

from tests.fuzz import sequences
from tests.fuzz.disk import FAULTS
from tests.fuzz.guest import NUMBERS, Record, Script, number
from tests.fuzz.journal import DAMAGES, DEATHS
from tests.fuzz.rig import Seen, Setting
from tests.fuzz.scripts import OUT, Writer
from tests.fuzz.values import least
from tests.fuzz.victim import alike, expected_of_victim, needs


@pytest.mark.parametrize("seed", range(6))
def test_call_cases_find_nothing(seed: int) -> None:
    for index in range(2):
        case = sequences.make(Random(f"suite/{seed}/{index}"))
        seen, _ = sequences.play(case, Random(0))
        assert seen.wrong == [], str(case)
        assert sequences.calls_of(seen) > 10


def test_disk_cases_with_faults_find_nothing() -> None:
    met: Counter[str] = Counter()
    for seed in range(12):
        case = sequences.make_disk(Random(f"suite/{seed}"))
        seen, _ = sequences.play(case, Random(0))
        assert seen.wrong == [], str(case)
        met += seen.met
    assert met["tiers_spilled_pages"] > 30
    assert met["tiers_read_pages"] > 10
    assert set(FAULTS) <= set(met), "each fault has happened"


@pytest.mark.parametrize("seed", ["40/disk/9", "66/disk/22"])
def test_disk_case_of_an_earlier_deadlock_finds_nothing(seed: str) -> None:
    """Two files read each other's pages away; a page that was written was on its way for ever."""
    seen, _ = sequences.play(sequences.make_disk(Random(seed)), Random(0))
    assert seen.wrong == []


def test_journal_cases_with_deaths_and_damage_find_nothing() -> None:
    met: Counter[str] = Counter()
    for seed in range(18):
        case = sequences.make_journal(Random(f"suite/{seed}"))
        seen, _ = sequences.play(case, Random(0))
        assert seen.wrong == [], str(case)
        met += seen.met
    assert set(DEATHS) <= set(met)
    assert met["lost"], "no damage was ever told"
    assert sum(met[damage] for damage in DAMAGES) > met["lost"], "none was ever healed"


def test_script_writer_makes_every_call() -> None:
    made: set[str] = set()
    for seed in range(30):
        made |= {record.call for record in Writer(Random(seed), 200).script().records}
    assert {call.name for call in table().calls} <= made


def played(*records: Record, **limits: int) -> Seen:
    guest = sequences.Guest("t0", "worker-0", 0.0, Script(records), tuple(limits.items()))
    return sequences.play(sequences.Case(Setting(), (guest,)), Random(0))[0]


def test_guest_that_waits_for_ever_is_found() -> None:
    made = Record("recv", (), 1)
    waits = Record("claim", ((1, 0), number(OUT), number(8), number(-1)))
    assert played(made, waits).wrong == ["guest 0 has waited for ever"]
    given_up = Record("claim", ((1, 0), number(OUT), number(8), number(50)))
    assert played(made, given_up).wrong == []


def test_undocumented_result_is_found() -> None:
    seen = Seen()
    for call, result in (("kv_len", -9), ("kv_len", 3), ("send", 0), ("pred", 1)):
        seen.result(NUMBERS[call], (), result)
    assert seen.wrong == []
    for call, result in (("kv_len", -1), ("send", 3), ("pred", 0)):
        seen.result(NUMBERS[call], (), result)
    assert len(seen.wrong) == 3


def test_victim_may_get_enomem_only_without_guaranteed_pages() -> None:
    rich = needs(rich=True)
    assert not Setting(pages=256).entitles(1), "the pool may be full"
    assert Setting(pages=48, a_frame=4).entitles(rich)
    assert not Setting(pages=24, a_frame=4).entitles(rich), "three would hold all of it"
    alone = expected_of_victim()
    starved = bytearray(alone)
    starved[20:24] = (-Errno.ENOMEM).to_bytes(4, "little", signed=True)  # the second answer
    starved[24:32] = bytes(8)
    assert alike(bytes(starved), alone, starves=True)
    assert not alike(bytes(starved), alone, starves=False)
    starved[0] ^= 1
    assert not alike(bytes(starved), alone, starves=True), "before it starved"
    assert not alike(alone[:-12], alone, starves=True)


def test_call_case_shrinks_to_the_least() -> None:
    bad = Record("log", (number(9), number(0), number(0)), 3)
    many = (Record("kv_create"), bad, Record("again", (number(2), number(3)), 60))
    case = sequences.make(Random(5))
    guest = replace(case.guests[0], script=Script(many))
    left = replace(case, guests=(*case.guests[1:], guest))

    def matters(each: sequences.Case) -> bool:
        return any(bad in guest.script.records for guest in each.guests)

    left = least(left, sequences.smaller, matters)
    assert [guest.script.records for guest in left.guests] == [(bad,)]
    assert left.events == ()
