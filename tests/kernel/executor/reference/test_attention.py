"""Attention over pages in torch, and its planning, against the plain oracle."""

import numpy as np
import pytest
import torch
from symphony_kernel.executor.reference.attention import Group, attend
from symphony_kernel.executor.reference.step_plan import (
    Geometry,
    ancestors,
    plan_step,
    rounded_entries,
)
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.executor.exact_attention import reference_attention
from tests.support.executor.models import Mix, make_row, mixed_rows, slots_of
from tests.support.kernel.dense_attention import visible_entries

HEADS, KV_HEADS, HEAD_DIM, PAGES = 6, 2, 8, 200

MIXES: dict[str, Mix] = {
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


def geometry(window: int | None = None) -> Geometry:
    return Geometry((window,), PAGES * PAGE_TOKENS, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("window", [None, 1, 5, 16, 33, 1000])
@pytest.mark.parametrize("mix", MIXES)
def test_attention_of_every_row_equals_the_oracle(mix: str, window: int | None) -> None:
    random = np.random.default_rng(sum(map(ord, mix)))
    torch.manual_seed(1)
    rows = mixed_rows(MIXES[mix], random, PAGES)
    # All slots that no row owns are poisoned, but for the zeros that pad.
    pool = torch.full(((PAGES + 1) * PAGE_TOKENS, 2, KV_HEADS, HEAD_DIM), float("nan"))
    pool[PAGES * PAGE_TOKENS :] = 0.0
    owned = []
    for row in rows:
        owned.append(slots_of(row.block_table, np.arange(row.start + len(row.tokens))))
        pool[owned[-1]] = torch.randn(len(owned[-1]), 2, KV_HEADS, HEAD_DIM)

    plan = plan_step(rows, geometry(window))
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
def test_row_in_any_batch_on_any_threads_has_the_same_bits(shared: int, q: int) -> None:
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


def test_attention_of_long_rows_in_parts_equals_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symphony_kernel.executor.reference.step_plan._MASK_ELEMENTS_MAX", 800)
    for mix in ("chunks", "everything", "prefills"):
        test_attention_of_every_row_equals_the_oracle(mix, None)
        test_attention_of_every_row_equals_the_oracle(mix, 16)


def test_plan_groups_rows_of_like_sizes_only() -> None:
    random = np.random.default_rng(0)
    mix = [(1, 64, False), (30, 0, False), (1, 66, False), (1, 140, False), (30, 0, False)]
    groups = plan_step(mixed_rows(mix, random, PAGES), geometry()).groups[None]
    assert [(g.rows, g.q, g.entries, g.causal) for g in groups] == [
        (2, 1, 80, False),
        (1, 1, 160, False),
        (2, 30, 30, True),
    ]


def test_width_of_a_group_wastes_at_most_a_quarter_or_a_page() -> None:
    widths = [rounded_entries(count) for count in range(1, 5000)]
    assert widths == sorted(widths)
    for count, width in enumerate(widths, 1):
        assert count <= width < count + max(PAGE_TOKENS, count / 4)
        assert width % PAGE_TOKENS == 0
    assert len(set(widths)) < 40


def test_ancestors_follow_the_parents_of_a_tree() -> None:
    related = ancestors(np.array([-1, 0, 1, 0, -1], np.int32))
    assert related.astype(int).tolist() == [
        [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 1],
    ]  # fmt: skip


def test_plan_keeps_the_order_of_places() -> None:
    row = make_row(range(5), np.array([3], np.int32))
    row.places = np.array([4, 0, 0], np.int32)
    silent = make_row(range(2), np.array([4], np.int32))
    silent.places = np.empty(0, np.int32)
    plan = plan_step([row, silent], geometry())
    assert plan.indices == [0]
    assert plan.tokens[plan.wanted].tolist() == [4, 0, 0]
