"""Lineage: what files record of where their entries come from, and who pays for it."""

import timeit
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.lineage.book import LineageBook
from symphony_kernel.kvfs.lineage.planning import FILE, NotRecomputableError, Part
from symphony_kernel.kvfs.lineage.spans import (
    Span,
    Trail,
    expand,
    lost_trail,
    ranges_of,
    same,
    spans_of,
)
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import LINEAGE_SPANS_MAX, LINEAGE_TENANT_ENTRIES_MIN

from tests.support.kernel.page_device import FilesRig
from tests.support.kernel.recompute import HashDevice, Workbench
from tests.support.refusals import refused


@pytest.fixture
def bench() -> Iterator[Workbench]:
    """Files that must leave nothing behind."""
    bench = Workbench(HashDevice(100))
    yield bench
    bench.close_all()


def tokens(count: int, seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(1, 90, count).tolist()
    return found


def shown(trail: Trail | None) -> list[Any]:
    return [] if trail is None else [part.ranges.tolist() for part in trail.parts()]


def test_plain_file_has_no_lineage(bench: Workbench) -> None:
    file = bench.create()
    bench.pred(file, tokens(20))
    bench.pred(file, tokens(5), np.arange(100, 105))
    bench.pred(file, tokens(3), parents=[-1, 0, 1])  # a single branch is no tree
    fork = bench.fork(file)
    fork.truncate(22)
    bench.pred(fork, [1])
    begun = bench.extract(fork, (0, 9))
    for each in (file, fork, begun):
        assert each.origins is None
        assert each.lineage is None
        assert each.recomputable


def test_nested_extracts_have_the_documented_lineage(bench: Workbench) -> None:
    a = bench.create()
    bench.pred(a, tokens(100))
    b = bench.extract(a, (0, 4), (80, 100))
    bench.pred(b, tokens(5))
    c = bench.extract(b, (4, 29))
    assert shown(b.lineage) == [[[0, 4], [80, 100]]]
    assert shown(c.lineage) == [[[80, 100]], [[0, 5]]]
    assert a.lineage is None
    spans = spans_of([c.lineage])
    assert [span.length for span in spans] == [100, 5]
    assert shown(spans[1].context) == [[[0, 4], [80, 100]]]
    assert bench.kvfs.lineages.charged("t") == 100 + 105
    bench.close(a, b, c)
    assert bench.kvfs.lineages.charged("t") == 0


def test_forks_share_a_lineage_and_are_charged_once(bench: Workbench) -> None:
    a = bench.create()
    bench.pred(a, tokens(50))
    b = bench.extract(a, (10, 50))
    for number in range(5):
        bench.pred(bench.fork(b), [number + 1])
    assert bench.kvfs.lineages.charged("t") == 50
    assert len(bench.kvfs.lineages._lineages) == 1


def test_reader_is_charged_for_the_lineage_it_adds(bench: Workbench) -> None:
    a = bench.create()
    bench.pred(a, tokens(50))
    b = bench.extract(a, (10, 50))
    other = bench.create("other")
    other.share(b)  # as opening a public name does
    bench.pred(other, [1, 2, 3], parents=[-1, -1, 0])
    assert bench.kvfs.lineages.charged("t") == 50
    assert bench.kvfs.lineages.charged("other") == 53


def test_repeated_appends_of_one_source_share_a_span(bench: Workbench) -> None:
    source, target = bench.create(), bench.create()
    for count in (20, 1, 30):
        bench.pred(source, tokens(count))
        bench.append(target, source, source.length - 1, source.length)
        bench.append(target, source, 3, 5)
    [span] = spans_of([target.lineage])
    assert (span.length, span.tokens.tolist()) == (51, source.tokens.tolist())
    assert shown(target.lineage) == [[[19, 20], [3, 5], [20, 21], [3, 5], [50, 51], [3, 5]]]


def test_diverging_forks_have_their_own_spans(bench: Workbench) -> None:
    one = bench.create()
    bench.pred(one, tokens(10))
    bench.extract(one, (5, 10))  # one is written down
    other = bench.fork(one)
    bench.pred(one, [81, 82])
    bench.pred(other, [83])
    one_part, other_part = bench.extract(one, (9, 12)), bench.extract(other, (9, 11))
    assert spans_of([one_part.lineage])[0].tokens[10:].tolist() == [81, 82]
    assert spans_of([other_part.lineage])[0].tokens[10:].tolist() == [83]
    other.truncate(10)
    bench.pred(other, [84, 85])
    again = bench.extract(other, (9, 12))
    assert spans_of([again.lineage])[0].tokens[10:].tolist() == [84, 85]


@pytest.mark.parametrize(
    ("length", "expected"), [(20, None), (22, None), (23, [[[0, 20]], [[0, 3]]]), (24, 4), (26, 4)]
)
def test_truncated_tree_unneeded_is_forgotten(bench: Workbench, length: int, expected: Any) -> None:
    file = bench.create()
    bench.pred(file, tokens(20))
    bench.pred(file, tokens(4), parents=[-1, 0, 0, 2])
    bench.pred(file, tokens(2))
    file.truncate(length)
    wanted = [[[0, 20]], [[0, 4]]] if expected == 4 else expected
    assert shown(file.lineage) == (wanted or [])


def test_accepted_path_is_closed_and_a_window_is_not(bench: Workbench) -> None:
    file = bench.create()
    bench.pred(file, tokens(20))
    bench.pred(file, tokens(5), parents=[-1, -1, 1, 1, 3])
    path = bench.extract(file, (0, 20), (21, 22), (23, 25))
    assert path.lineage is not None
    assert path.lineage.closed
    assert not path.lineage.linear
    for ranges in ([(0, 20), (20, 21), (23, 24)], [(1, 20)], [(0, 19), (21, 22)], [(21, 22)]):
        other = bench.extract(file, *ranges)
        assert other.lineage is not None
        assert not other.lineage.closed
        bench.close(other)


def speculate(bench: Workbench, file: KVFile, rounds: int) -> KVFile:
    for number in range(rounds):
        bench.pred(file, tokens(4, number), parents=[-1, -1, 1, 1])
        n = file.length - 4
        kept = bench.extract(file, (0, n), (n + 1, n + 2), (n + 3, n + 4))
        bench.close(file)
        file = kept
        bench.pred(file, [number % 80 + 1])
    return file


def test_endless_speculation_stays_recomputable(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symphony_kernel.kvfs.lineage.book.LINEAGE_SPANS_MAX", 9)
    file = bench.create()
    bench.pred(file, tokens(20))
    seen = []
    for _ in range(12):
        file = speculate(bench, file, 1)
        assert file.recomputable
        seen.append(len(spans_of([file.lineage])))
    assert max(seen) <= 4
    assert seen.count(0) > 2, "it was dropped and started again"


def test_file_past_the_span_bound_is_lost_and_usable(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symphony_kernel.kvfs.lineage.book.LINEAGE_SPANS_MAX", 3)
    file = bench.create()
    bench.pred(file, tokens(20))
    for step in range(4):
        assert file.recomputable
        assert sum(each.kept.lost for each in bench.kvfs.lineages._lineages) == 0
        kept = bench.extract(file, (0, 2), (8, file.length))
        bench.close(file)
        file = kept
        bench.pred(file, tokens(3, step))
    assert sum(each.kept.lost for each in bench.kvfs.lineages._lineages) == 1
    assert bench.kvfs.lineages.charged("t") == 0
    # What came behind can be computed as long as what is lost is there.
    values = bench.content(file)
    assert file.plan(np.arange(file.length - 3, file.length))[0].in_place
    bench.rebuild(file, np.arange(file.length - 3, file.length))
    assert np.array_equal(bench.content(file), values)
    with pytest.raises(NotRecomputableError):
        file.plan(np.arange(file.length))
    fork = bench.fork(file)
    said = [file.recomputable, fork.recomputable]
    fork.truncate(0)
    assert [*said, fork.recomputable] == [False, False, True]


def test_lineage_of_a_tenant_is_bounded(bench: Workbench) -> None:
    assert bench.kvfs.lineages.entries_max == LINEAGE_TENANT_ENTRIES_MIN
    bench.kvfs.lineages.entries_max = 160
    source = bench.create()
    bench.pred(source, tokens(60))
    files = [bench.extract(source, (1, 2)) for _ in range(3)]
    assert [file.recomputable for file in files] == [True, True, False]
    assert bench.kvfs.lineages.charged("t") == 120
    bench.close(files.pop(0))
    files.append(bench.extract(source, (1, 2)))
    assert files[-1].recomputable


def test_lineage_audit_finds_wrong_references() -> None:
    book = LineageBook(1000)
    span = Span(None, np.ones(5, np.uint32), np.arange(5, dtype=np.int32))
    lineage = book.open("t", book.assess("t", Trail(None, span, np.array([[1, 5]]))))
    assert lineage is not None
    book.check_integrity({lineage: 1})
    for held in ({}, {lineage: 2}):
        with pytest.raises(Exception, match="not those that files hold"):
            book.check_integrity(held)
    book.close(lineage)
    book.check_integrity({})


def test_adapters_of_lineages_are_known_without_a_look_at_their_spans() -> None:
    book, held = LineageBook(1 << 20), []
    for number in range(20):
        trail: Trail | None = None
        for index in range(LINEAGE_SPANS_MAX):
            one = np.array([index])
            span = Span(trail, one.astype(np.uint32), one.astype(np.int32), None, "xyz"[index % 2])
            trail = Trail(trail, span, np.array([[0, 1]]))
        lineage = book.open("t", book.assess("t", trail, keep=True))
        assert lineage is not None, number
        held.append(lineage)
    assert book.adapters() == {"x", "y"}
    of_all = min(timeit.repeat(lambda: spans_of([each.trail for each in held]), number=1))
    assert min(timeit.repeat(book.adapters, number=1)) < of_all / 20
    for each in held:
        book.close(each)
    assert book.adapters() == set()


@pytest.mark.parametrize(
    ("absent", "context", "count"),
    [
        (range(16, 32), ((FILE, 0, 16),), 16),
        (range(32, 40), ((FILE, 0, 32),), 8),
        (range(40), (), 40),
    ],
)
def test_absent_entries_of_a_plain_file_are_computed_in_place(
    bench: Workbench, absent: Sequence[int], context: tuple[Any, ...], count: int
) -> None:
    file = bench.create()
    bench.pred(file, tokens(40), np.arange(7, 47))
    [step] = file.plan(np.array(absent))
    assert step.in_place
    assert step.context == tuple(Part(*each) for each in context)
    assert step.tokens.tolist() == file.tokens[absent].tolist()
    assert step.positions.tolist() == file.positions[absent].tolist()
    assert step.parents is None
    assert len(step.tokens) == count


def test_plan_computes_only_what_is_needed(bench: Workbench) -> None:
    a = bench.create()
    bench.pred(a, tokens(100))
    b = bench.extract(a, (0, 32), (80, 96))
    assert b.plan(np.arange(0)) == []
    [step] = b.plan(np.arange(16, 32))
    assert step.in_place
    # The last 16 saw 48 that are gone: these, and nothing else, are computed as well.
    [step] = b.plan(np.arange(32, 48))
    assert step.context == (Part(FILE, 0, 32),)
    assert len(step.tokens) == 64
    assert not step.in_place


def test_ranges_are_runs_of_entries() -> None:
    entries = np.array([4, 5, 6, 2, 3, 3, 9])
    assert ranges_of(entries).tolist() == [[4, 7], [2, 4], [3, 4], [9, 10]]
    assert expand(ranges_of(entries)).tolist() == entries.tolist()
    assert expand(ranges_of(np.arange(0))).tolist() == []


def test_trails_of_the_same_entries_are_equal() -> None:
    span = Span(None, np.ones(9, np.uint32), np.arange(9, dtype=np.int32))
    one, other = (Trail(None, span, np.array([[0, 5]])) for _ in range(2))
    assert same(one, other)
    assert same(None, None)
    assert not same(one, None)
    assert not same(one, Trail(None, span, np.array([[0, 6]])))
    assert not same(one, lost_trail(5))
    cut = Trail(None, span, np.array([[0, 6]])).cut(5)
    assert same(one, cut)
    assert one.cut(0) is None
    assert one.cut(5) is one


def test_evicted_file_is_edited_a_bounded_number_of_times() -> None:
    """The plan that recomputes it must be made in a moment."""
    rig = FilesRig(256, TierConfig(pages_a_frame=64))
    file = rig.file(32)

    def edit() -> None:
        rig.kvfs.tiers.evict(file.pages, host=False)
        other = rig.file(2)
        try:
            file.append(other, np.array([1]))
        finally:
            rig.close(other)

    for _ in range(LINEAGE_SPANS_MAX - 1):
        edit()
    assert file.recomputable
    before = file.length
    assert refused(edit) is Errno.EDQUOT
    assert file.length == before
    rig.check()
