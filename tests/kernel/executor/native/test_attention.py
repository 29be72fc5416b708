"""Native attention on pages: against the plain oracle, and bit for bit against itself."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.base import Int64, Row
from symphony_kernel.executor.native.pages import NativePages, PoolShape
from symphony_kernel.executor.native.step import flat_step
from symphony_kernel.protocol.limits import PAGE_TOKENS
from torch import Tensor

from tests.support.executor.exact_attention import reference_attention
from tests.support.executor.models import Mix, make_row, mixed_rows, slots_of
from tests.support.executor.native import native_library
from tests.support.executor.native_kernels import LayerWork, LoneAttention
from tests.support.kernel.dense_attention import visible_entries
from tests.support.requirements import lacking

POSITIONS = 4096
PAGES = 700

Float = npt.NDArray[np.float32]


# --- A pool with some rows, and what attention should make of them --------------------------------


def _tables(head_dim: int) -> tuple[Float, Float]:
    """Return cosines and sines, [POSITIONS, head_dim / 2]."""
    angles = np.arange(POSITIONS)[:, None] / 100.0 ** (np.arange(head_dim // 2) / head_dim * 2)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rounded(values: Float, shape: PoolShape) -> Tensor:
    """Return what the pool keeps of values."""
    plain = torch.from_numpy(values)
    return plain.bfloat16().float() if shape.element_bytes == 2 else plain


def _bits(values: Tensor, shape: PoolShape) -> npt.NDArray[np.generic]:
    if shape.element_bytes == 4:
        return values.float().numpy()
    return values.bfloat16().view(torch.int16).numpy().view(np.uint16)


def _floats(bits: npt.NDArray[np.generic]) -> Tensor:
    if bits.dtype == np.float32:
        return torch.from_numpy(bits)
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float()


@dataclass
class Scene:
    """Rows with their entries, in a pool whose other slots are NaN."""

    pool: NativePages
    rows: list[Row]
    norms: tuple[Float, Float] | None = None
    sinks: Float | None = None  # [heads]
    entries: list[Tensor] = field(default_factory=list)  # of each row, [start, 2, kv_heads, dim]
    qkv: list[Float] = field(default_factory=list)  # of each row

    def fill(self, random: np.random.Generator) -> None:
        """Draw the entries and the new tokens; rows whose pages are shared draw the same."""
        shape = self.pool.shape
        self.pool.poison(np.arange(shape.pages, dtype=np.int32))
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        for row in self.rows:
            slots = _slots(row)[: row.start]
            plain = np.zeros((len(slots), 2, shape.kv_heads, shape.head_dim), np.float32)
            for page in np.unique(slots // PAGE_TOKENS):
                mine = slots // PAGE_TOKENS == page
                drawn = np.random.default_rng(int(page)).standard_normal((16, *plain.shape[1:]))
                plain[mine] = drawn[slots[mine] % PAGE_TOKENS]
            kept = _rounded(plain, shape)
            for layer in range(len(shape.windows)):
                self.pool.write(layer, slots, _bits(kept, shape))
            self.entries.append(kept)
            drawn = random.standard_normal((len(row.tokens), width)) * 1.5
            self.qkv.append(drawn.astype(np.float32))

    def work(self, layer: int, members: Sequence[int]) -> LayerWork:
        """Return one layer's work for some of the rows."""
        shape = self.pool.shape
        qkv = np.concatenate([self.qkv[i] for i in members])
        kind = np.float32 if shape.element_bytes == 4 or shape.wide else np.uint16
        out = np.zeros((len(qkv), shape.heads * shape.head_dim), kind)
        cosines, sines = _tables(shape.head_dim)
        q_norm, k_norm = self.norms or (None, None)
        return LayerWork(layer, qkv, out, cosines, sines, q_norm, k_norm, self.sinks)

    def expected(self, index: int, window: int | None) -> Tensor:
        """Return a row's [q, heads, head_dim] by the oracle."""
        shape, row = self.pool.shape, self.rows[index]
        heads, kv_heads = shape.heads, shape.kv_heads
        qkv = torch.from_numpy(self.qkv[index]).double().view(len(row.tokens), -1, shape.head_dim)
        queries, keys, values = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        if self.norms is not None:
            queries = _norm(queries, self.norms[0], shape)
            keys = _norm(keys, self.norms[1], shape)
        queries, keys = _turn(queries, row), _turn(keys, row)
        scale = shape.head_dim**-0.5 / np.log(2.0)  # as queries are kept
        if not shape.wide:
            queries = _rounded((queries * scale).float().numpy(), shape).double() / scale
        new = torch.stack((keys, values), dim=1).float().numpy()
        both = torch.cat((self.entries[index], _rounded(new, shape)))
        visible = torch.from_numpy(visible_entries(row, window))
        sinks = None if self.sinks is None else torch.from_numpy(self.sinks)
        return reference_attention(queries, both[:, 0], both[:, 1], visible, shape.score_cap, sinks)


def _norm(heads: Tensor, weight: Float, shape: PoolShape) -> Tensor:
    scale = (heads.square().mean(-1, keepdim=True) + shape.norm_epsilon).rsqrt()
    return heads * scale * torch.from_numpy(weight).double()


def _turn(heads: Tensor, row: Row) -> Tensor:
    cosines, sines = (torch.from_numpy(t)[row.positions] for t in _tables(heads.shape[-1]))
    cosine, sine = (t[:, None].double().repeat(1, 1, 2) for t in (cosines, sines))
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return heads * cosine + turned * sine


def _slots(row: Row) -> Int64:
    return slots_of(row.block_table, np.arange(row.start + len(row.tokens)))


def _rows(mix: Mix, random: np.random.Generator, pages: int) -> list[Row]:
    rows = mixed_rows(mix, random, pages)
    for row in rows:
        row.positions = random.integers(0, POSITIONS, len(row.tokens)).astype(np.int32)
    return rows


def _compute(scene: Scene, members: Sequence[int], threads: int) -> list[list[Tensor]]:
    """Return each member's [q, heads, head_dim], layer after layer."""
    scene.pool.structure.threads = threads
    works = [scene.work(layer, members) for layer in range(len(scene.pool.shape.windows))]
    with closing(LoneAttention(native_library(), scene.pool)) as attention:
        attention.plan(flat_step([scene.rows[i] for i in members]))
        attention.compute(works)
    counts = [len(scene.rows[i].tokens) for i in members]
    shape = scene.pool.shape
    return [
        list(torch.split(_floats(work.out).view(-1, shape.heads, shape.head_dim), counts))
        for work in works
    ]


def _check(scene: Scene, threads: int = 2) -> list[list[Tensor]]:
    found = _compute(scene, range(len(scene.rows)), threads)
    shape = scene.pool.shape
    tolerance = 8e-3 if shape.element_bytes == 2 else 5e-6
    if shape.wide:
        tolerance = 1e-3  # only what goes into the pool is rounded, and seldom the other way
    for layer, window in enumerate(shape.windows):
        for index, mine in enumerate(found[layer]):
            expected = scene.expected(index, window)
            torch.testing.assert_close(mine.double(), expected, rtol=tolerance * 4, atol=tolerance)
    return found


class SceneMaker:
    """Makes scenes and closes their pools."""

    def __init__(self) -> None:
        self._pools: list[NativePages] = []

    def __call__(self, shape: PoolShape, mix: Mix, seed: int = 0, norms: bool = False) -> Scene:
        random = np.random.default_rng(seed)
        return self.of_rows(shape, _rows(mix, random, shape.pages), random, norms)

    def of_rows(
        self, shape: PoolShape, rows: list[Row], random: np.random.Generator, norms: bool = False
    ) -> Scene:
        pool = NativePages(native_library(), shape)
        self._pools.append(pool)
        weights = tuple(random.uniform(0.5, 1.5, shape.head_dim).astype(np.float32) for _ in "qk")
        scene = Scene(pool, rows, (weights[0], weights[1]) if norms else None)
        scene.fill(random)
        return scene

    def close(self) -> None:
        while self._pools:
            self._pools.pop().close()


@pytest.fixture
def make_scene() -> Iterator[SceneMaker]:
    with closing(SceneMaker()) as maker:
        yield maker


SMALL = PoolShape(6, 2, 16, 4, PAGES, (None,), 1e-5)
BOTH = pytest.mark.parametrize("element_bytes", [2, 4], ids=["bf16", "fp32"])
TYPES = {"bf16": (2, False), "widened": (2, True), "fp32": (4, False)}


@pytest.fixture(params=TYPES)
def small(request: pytest.FixtureRequest) -> PoolShape:
    """A small pool of each type of numbers, and of each way to multiply them."""
    return _typed(str(request.param))


def _typed(name: str) -> PoolShape:
    element_bytes, wide = TYPES[name]
    if name == "bf16" and not native_library().computes_bf16:
        lacking("bf16", "this processor does not multiply bfloat16")
    return replace(SMALL, element_bytes=element_bytes, wide=wide)


MIXES: dict[str, Mix] = {
    "one decode": [(1, 0, False)],
    "decodes of all lengths": [
        (1, n, False) for n in (0, 1, 14, 15, 16, 17, 40, 254, 255, 256, 257, 511, 512, 700)
    ],
    "prefills": [(7, 0, False), (33, 0, False), (300, 0, False), (16, 0, False)],
    "chunks": [
        (7, 20, False), (33, 250, False), (33, 7, False), (16, 512, False), (90, 770, False),
    ],
    "trees": [(9, 0, True), (9, 30, True), (90, 250, True), (1, 5, True), (200, 600, True)],
    "everything": [
        (1, 40, False), (12, 3, True), (40, 0, False), (1, 41, False), (2, 0, False),
        (40, 90, False), (1, 0, False), (12, 0, False), (1, 1500, False), (3, 1300, True),
    ],
}  # fmt: skip


# --- Against the oracle ---------------------------------------------------------------------------


@pytest.mark.parametrize("mix", MIXES)
def test_attention_of_every_row_equals_the_oracle(
    make_scene: SceneMaker, mix: str, small: PoolShape
) -> None:
    shape = replace(small, windows=(None, 1, 5, 16, 33, 260, 1000))
    _check(make_scene(shape, MIXES[mix], sum(map(ord, mix))))


@pytest.mark.parametrize("head_dim", [2, 8, 32, 64, 80, 96, 128, 160, 256])
def test_attention_with_any_size_of_heads_equals_the_oracle(
    make_scene: SceneMaker, head_dim: int, small: PoolShape
) -> None:
    windows = None, 40
    shape = replace(small, heads=4, head_dim=head_dim, windows=windows, norm_epsilon=1e-6)
    mix = [(1, 300, False), (35, 20, False), (6, 17, True)]
    _check(make_scene(shape, mix, norms=True))


@pytest.mark.parametrize("heads", [(1, 1), (5, 5), (9, 3), (14, 2), (8, 1), (64, 1), (71, 1)])
def test_attention_with_any_groups_of_heads_equals_the_oracle(
    make_scene: SceneMaker, heads: tuple[int, int], small: PoolShape
) -> None:
    shape = replace(small, heads=heads[0], kv_heads=heads[1], head_dim=64)
    mix = [(1, 600, False), (40, 0, False), (4, 17, True), (1, 3, False)]
    _check(make_scene(shape, mix))


@pytest.mark.parametrize("threads", [1, 3])  # with three, entries are split and merged
def test_attention_with_capped_scores_and_sinks_equals_the_oracle(
    make_scene: SceneMaker, small: PoolShape, threads: int
) -> None:
    shape = replace(small, windows=(None, 40), score_cap=1.5)
    mix = [(1, 1500, False), (35, 300, False), (9, 250, True), (1, 0, False), (1, 700, False)]
    scene = make_scene(shape, mix)
    _check(scene, threads)
    # Far below all scores, among them, and far above: then it takes all weight.
    scene.sinks = np.array([-80.0, -1.0, 0.0, 0.7, 3.0, 60.0], np.float32)
    found = _check(scene, threads)
    assert float(found[0][0][0, 5].abs().max()) < 1e-6


row_mixes = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 560), st.booleans()), min_size=1, max_size=6
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    mix=row_mixes,
    heads=st.sampled_from([(1, 1), (6, 2), (9, 3), (7, 1)]),
    head_dim=st.sampled_from([8, 16, 64, 80]),
    name=st.sampled_from(list(TYPES)),
    windows=st.tuples(st.none(), st.integers(1, 600)),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**20),
)
def test_attention_of_any_step_equals_the_oracle(
    make_scene: SceneMaker,
    mix: Mix,
    heads: tuple[int, int],
    head_dim: int,
    name: str,
    windows: tuple[int | None, ...],
    threads: int,
    seed: int,
) -> None:
    if not native_library().computes_bf16:
        name = name.replace("bf16", "widened")
    small = replace(_typed(name), head_dim=head_dim, windows=windows)
    shape = replace(small, heads=heads[0], kv_heads=heads[1])
    _check(make_scene(shape, mix, seed, norms=bool(seed % 2)), threads)
    make_scene.close()


def test_attention_to_entries_of_tiny_weight_is_not_slower(small: PoolShape) -> None:
    """A weight of 1e-40 is no normal number: products of such numbers take fifty times as long."""
    shape = replace(small, heads=9, kv_heads=3, head_dim=64, pages=65)
    pool = NativePages(native_library(), shape)
    row = make_row([1], np.arange(65, dtype=np.int32), 1024)
    plain = np.ones((1024, 2, 3, 64), np.float32)
    plain[:, 0] = -1 / 64
    plain[::256, 0] = 0  # a block's weights are relative to its own maximum
    attention = LoneAttention(native_library(), pool)
    attention.plan(flat_step([row]))

    def seconds(nats: float, value: float = 1.0) -> float:
        """Return the seconds of a token most of whose entries are `nats` below the highest."""
        plain[:, 1] = value
        pool.write(0, np.arange(1024), _bits(torch.from_numpy(plain), shape))
        scene = Scene(pool, [row])
        scene.qkv = [np.zeros((1, 15 * 64), np.float32)]
        scene.qkv[0][:, : 9 * 64] = nats * 8
        work = scene.work(0, [0])
        work.cosines[:], work.sines[:] = 1, 0
        times = []
        for _ in range(30):
            began = time.perf_counter()
            attention.compute([work])
            times.append(time.perf_counter() - began)
        return min(times)

    assert max(map(seconds, (89, 92, 95, 100))) < 10 * seconds(60)
    assert seconds(1, value=1e-39) < 10 * seconds(60)  # as an uploaded file may have them
    attention.close()
    pool.close()


# --- Bit for bit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 300])
def test_row_in_any_batch_on_any_threads_has_the_same_bits(
    make_scene: SceneMaker, window: int | None, small: PoolShape
) -> None:
    shape = replace(small, heads=9, kv_heads=3, head_dim=64, windows=(window,))
    mix = [*MIXES["everything"], (1, 2500, False), (25, 1200, False)]
    scene = make_scene(shape, mix)
    [together] = _compute(scene, range(len(mix)), threads=2)
    for threads in (1, 2, 5):
        for members in ([10], [11], [8], [9, 3], [5, 11, 8, 0], range(len(mix))):
            [found] = _compute(scene, members, threads)
            for index, mine in zip(members, found, strict=True):
                assert torch.equal(mine, together[index]), (threads, members, index)


def test_token_in_any_chunk_has_the_same_bits(make_scene: SceneMaker, small: PoolShape) -> None:
    shape = replace(small, head_dim=64, windows=(None, 290))
    whole = make_scene(shape, [(600, 0, False)])
    expected = [found[0] for found in _compute(whole, [0], threads=2)]
    for sizes in ([600], [1] * 40 + [560], [16, 1, 239, 1, 255, 1, 87], [300, 300]):
        start = 0
        for size in sizes:
            row = whole.rows[0]
            part = make_row(row.tokens[start : start + size], row.block_table, start)
            part.positions = row.positions[start : start + size]
            scene = Scene(whole.pool, [part])
            scene.qkv = [whole.qkv[0][start : start + size]]
            for layer, [found] in enumerate(_compute(scene, [0], threads=1)):
                assert torch.equal(found, expected[layer][start : start + size])
            start += size


def test_rows_that_share_pages_have_the_bits_of_rows_alone(
    make_scene: SceneMaker, small: PoolShape
) -> None:
    random = np.random.default_rng(5)
    pages = random.permutation(PAGES).astype(np.int32)
    free = iter(pages[100:])
    rows = []
    # (shared pages, entries): forks after 512, 528 and 1,600 entries, and a row with own pages
    for trunk, start in ((32, 512), (32, 700), (31, 511), (33, 900), (0, 800), (100, 1600),
                         (100, 1610), (100, 1601), (16, 300), (2, 40), (100, 1605)):  # fmt: skip
        more = -(-(start + 1) // PAGE_TOKENS) - trunk
        table = np.array([*pages[:trunk], *(next(free) for _ in range(more))], np.int32)
        rows.append(make_row([1], table, start))
    shape = replace(small, heads=9, kv_heads=3, head_dim=64, windows=(None, 600, None))
    scene = make_scene.of_rows(shape, rows, random)
    together = _check(scene)
    for index in range(len(rows)):
        alone = _compute(scene, [index], threads=1)
        for layer in range(3):
            assert torch.equal(alone[layer][0], together[layer][index])


@pytest.mark.parametrize("threads", [1, 2, 5])  # with five, shared blocks are split over threads
def test_branches_of_branches_have_the_bits_of_rows_alone(
    make_scene: SceneMaker, small: PoolShape, threads: int
) -> None:
    """More branches than one task takes, of a trunk of six blocks; some share four more."""
    random = np.random.default_rng(11)
    pages = random.permutation(PAGES).astype(np.int32)
    trunk, branch, free = pages[:96], pages[96:160], iter(pages[160:])
    rows = []
    for number in range(25):
        common = np.concatenate((trunk, branch)) if number % 2 else trunk
        table = np.array([*common, next(free)], np.int32)
        rows.append(make_row([1], table, len(common) * PAGE_TOKENS + number % 15))
    shape = replace(small, heads=9, kv_heads=3, head_dim=64)
    scene = make_scene.of_rows(shape, rows, random)
    [together] = _compute(scene, range(len(rows)), threads)
    for index in (0, 1, 12, 23, 24):
        [[alone]] = _compute(scene, [index], threads=1)
        assert torch.equal(alone, together[index])


def test_padding_between_rows_is_neither_read_nor_written(make_scene: SceneMaker) -> None:
    scene = make_scene(replace(SMALL, head_dim=8), [(20, 30, False), (1, 5, False)])
    work = scene.work(0, [0, 1])
    wide = np.full((21, work.out.shape[1] + 3), 7.0, np.float32)
    padded = np.concatenate((work.qkv, np.full((21, 5), np.nan, np.float32)), axis=1)
    with closing(LoneAttention(native_library(), scene.pool)) as attention:
        attention.plan(flat_step(scene.rows))
        attention.compute([work, replace(work, qkv=padded, out=wide)])
    np.testing.assert_array_equal(wide[:, :-3], work.out)
    assert (wide[:, -3:] == 7.0).all()


def test_attention_that_plans_several_steps_computes_each(make_scene: SceneMaker) -> None:
    scene = make_scene(SMALL, MIXES["everything"])
    everyone = range(len(scene.rows))
    [expected] = _compute(scene, everyone, threads=2)
    attention = LoneAttention(native_library(), scene.pool)
    for members in ([0], [8, 9], [1, 4, 8], everyone, [2]):
        attention.plan(flat_step([scene.rows[i] for i in members]))
        work = scene.work(0, members)
        attention.compute([work])
        whole = torch.cat([expected[i] for i in members]).view(len(work.qkv), -1)
        assert torch.equal(_floats(work.out), whole)
    attention.close()


# --- The pool -------------------------------------------------------------------------------------


def _pool_contents(pool: NativePages) -> npt.NDArray[np.generic]:
    slots = np.arange(pool.shape.pages * PAGE_TOKENS)
    return np.stack([pool.read(layer, slots) for layer in range(len(pool.shape.windows))])


@BOTH
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_pool_copies_equal_copies_of_plain_slots(data: st.DataObject, element_bytes: int) -> None:
    pages = 6
    pool = NativePages(native_library(), PoolShape(4, 2, 6, element_bytes, pages, (None, None)))
    random = np.random.default_rng(0)
    slots = np.arange(pages * PAGE_TOKENS)
    kind, high = (np.uint16, 2**16) if element_bytes == 2 else (np.float32, 2**31)
    for layer in range(2):
        plain = random.integers(0, high, (len(slots), 2, 2, 6)).astype(f"<u{element_bytes}")
        pool.write(layer, slots, plain.view(kind))
    expected = _pool_contents(pool)
    order = st.permutations(range(len(slots)))
    for _ in range(data.draw(st.integers(1, 3))):
        run = data.draw(st.sampled_from([1, 5, 16, 40]))
        begins = [data.draw(st.integers(0, len(slots) - run)) for _ in range(2)]
        scattered = data.draw(order)[: data.draw(st.integers(0, 9))]
        targets = [t for t in scattered if not begins[1] <= t < begins[1] + run]
        sources = data.draw(order)[: len(targets)]
        both = zip(begins, (sources, targets), strict=True)
        group = np.array([[*range(b, b + run), *others] for b, others in both], np.int64)
        expected[:, group[1]] = expected[:, group[0]]
        pool.copy(group)
    np.testing.assert_array_equal(_pool_contents(pool).view(np.uint8), expected.view(np.uint8))
    pool.close()


@BOTH
def test_pool_poison_fills_its_pages_and_no_others(element_bytes: int) -> None:
    pool = NativePages(native_library(), PoolShape(2, 2, 24, element_bytes, 5, (None, None)))
    assert not _pool_contents(pool).any()
    pool.poison(np.array([3, 1], np.int32))
    contents = _floats(_pool_contents(pool).reshape(2, 5, -1))
    assert contents[:, [1, 3]].isnan().all()
    assert not contents[:, [0, 2, 4]].any()
    pool.close()


def test_pool_size_is_the_bytes_of_its_entries() -> None:
    pool = NativePages(native_library(), PoolShape(9, 3, 64, 2, 10, (None,) * 30))
    assert pool.bytes == 10 * PAGE_TOKENS * 30 * 2 * 3 * 64 * 2
    pool.close()
