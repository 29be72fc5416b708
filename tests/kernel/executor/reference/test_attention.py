"""Paged ragged attention and its planning, against the plain oracle."""

import numpy as np
import pytest
import torch
from symphony_kernel.executor.base import Row
from symphony_kernel.executor.reference.attention import Group, attend
from symphony_kernel.executor.reference.step_plan import (
    Geometry,
    ancestors,
    plan_step,
    rounded_entries,
)
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.executor.exact_attention import reference_attention
from tests.support.executor.models import make_row
from tests.support.kernel.dense_attention import visible_entries

HEADS, KV_HEADS, HEAD_DIM, PAGES = 6, 2, 8, 200

# (new tokens, present entries, whether they are a tree)
MIXES: dict[str, list[tuple[int, int, bool]]] = {
    "one decode": [(1, 0, False)],
    "decodes of all lengths": [(1, n, False) for n in (0, 1, 14, 15, 16, 17, 40, 200, 203, 204)],
    "decodes that fill their pages": [(1, 31, False), (1, 31, False)],
    "prefills": [(7, 0, False), (33, 0, False), (33, 0, False), (16, 0, False)],
    "chunks": [(7, 20, False), (33, 5, False), (33, 7, False), (16, 128, False)],
    "trees": [(9, 0, True), (9, 30, True), (9, 31, True), (1, 5, True)],
    "everything": [
        (1, 40, False), (12, 3, True), (40, 0, False), (1, 41, False), (2, 0, False),
        (40, 90, False), (1, 0, False), (12, 0, False), (1, 150, False),
    ],
}  # fmt: skip


def _rows(mix: list[tuple[int, int, bool]], random: np.random.Generator) -> list[Row]:
    pages = iter(random.permutation(PAGES))
    rows = []
    for q, start, is_tree in mix:
        count = -(-(start + q) // PAGE_TOKENS)
        table = np.array([next(pages) for _ in range(count)], np.int32)
        parents = [int(random.integers(-1, i)) if i else -1 for i in range(q)] if is_tree else None
        rows.append(make_row(random.integers(0, 9, q), table, start, parents=parents))
    return rows


@pytest.mark.parametrize("window", [None, 1, 5, 16, 33, 1000])
@pytest.mark.parametrize("mix", MIXES)
def test_every_row_equals_the_oracle(mix: str, window: int | None) -> None:
    random = np.random.default_rng(sum(map(ord, mix)))
    torch.manual_seed(1)
    rows = _rows(MIXES[mix], random)
    # All slots that no row owns are poisoned, but for the zeros that pad.
    pool = torch.full(((PAGES + 1) * PAGE_TOKENS, 2, KV_HEADS, HEAD_DIM), float("nan"))
    pool[PAGES * PAGE_TOKENS :] = 0.0
    owned = []
    for row in rows:
        entries = np.arange(row.start + len(row.tokens))
        owned.append(row.block_table[entries // PAGE_TOKENS] * PAGE_TOKENS + entries % PAGE_TOKENS)
        pool[owned[-1]] = torch.randn(len(entries), 2, KV_HEADS, HEAD_DIM)

    geometry = Geometry((window,), PAGES * PAGE_TOKENS, torch.float32, torch.device("cpu"))
    plan = plan_step(rows, geometry)
    count = sum(len(row.tokens) for row in rows)
    queries = torch.randn(count, HEADS, HEAD_DIM)
    for exact in (False, True):
        out = attend(queries, pool, plan.groups[window], exact)
        places = iter(plan.wanted.tolist())
        for index in plan.indices:
            row = rows[index]
            mine = [next(places) for _ in row.places]
            keys, values = pool[owned[index]].unbind(1)
            visible = torch.from_numpy(visible_entries(row, window))
            expected = reference_attention(queries[mine], keys, values, visible)
            found = out[mine].view(expected.shape).double()
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("q", [1, 2, 3, 5, 9, 35])
@pytest.mark.parametrize("shared", [1, 2, 3, 5])
def test_a_rows_bits_do_not_depend_on_its_company_or_thread(shared: int, q: int) -> None:
    torch.manual_seed(0)
    rows, entries, kv_heads = 5, 48, 3
    pool = torch.randn(rows * entries, 2, kv_heads, HEAD_DIM)
    queries = torch.randn(rows * q, kv_heads * shared, HEAD_DIM)
    mask = torch.zeros(rows, 1, q, entries)
    mask[:, :, :, 40:] = float("-inf")

    def compute(members: list[int]) -> torch.Tensor:
        slots = torch.cat([torch.arange(i * entries, (i + 1) * entries) for i in members])
        group = Group(0, len(members), q, entries, slots, mask[members], causal=False)
        mine = torch.cat([queries[i * q : (i + 1) * q] for i in members])
        return attend(mine, pool, [group], exact=True).view(len(members), q, -1)

    torch.set_num_threads(2)
    try:
        together = compute([0, 1, 2, 3, 4])
        for members in ([0], [4], [3, 1], [1, 4, 2]):
            assert torch.equal(compute(members), together[members])
    finally:
        torch.set_num_threads(1)


def test_long_rows_attend_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symphony_kernel.executor.reference.step_plan._MASK_ELEMENTS_MAX", 800)
    for mix in ("chunks", "everything", "prefills"):
        test_every_row_equals_the_oracle(mix, None)
        test_every_row_equals_the_oracle(mix, 16)


def test_rows_alike_share_a_group_and_strangers_do_not() -> None:
    random = np.random.default_rng(0)
    geometry = Geometry((None,), PAGES * PAGE_TOKENS, torch.float32, torch.device("cpu"))
    mix = [(1, 64, False), (30, 0, False), (1, 66, False), (1, 140, False), (30, 0, False)]
    groups = plan_step(_rows(mix, random), geometry).groups[None]
    assert [(g.rows, g.q, g.entries, g.causal) for g in groups] == [
        (2, 1, 80, False),
        (1, 1, 160, False),
        (2, 30, 30, True),
    ]


def test_a_width_wastes_at_most_a_quarter_or_a_page() -> None:
    widths = [rounded_entries(count) for count in range(1, 5000)]
    assert widths == sorted(widths)
    for count, width in enumerate(widths, 1):
        assert count <= width < count + max(PAGE_TOKENS, count / 4)
        assert width % PAGE_TOKENS == 0
    assert len(set(widths)) < 40


def test_ancestors_follow_parents() -> None:
    related = ancestors(np.array([-1, 0, 1, 0, -1], np.int32))
    assert related.astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]


def test_results_keep_the_order_of_places() -> None:
    geometry = Geometry((None,), PAGES * PAGE_TOKENS, torch.float32, torch.device("cpu"))
    row = make_row(range(5), np.array([3], np.int32))
    row.places = np.array([4, 0, 0], np.int32)
    silent = make_row(range(2), np.array([4], np.int32))
    silent.places = np.empty(0, np.int32)
    plan = plan_step([row, silent], geometry)
    assert plan.indices == [0]
    assert plan.tokens[plan.wanted].tolist() == [4, 0, 0]
