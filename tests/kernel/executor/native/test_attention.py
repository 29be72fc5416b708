"""Native attention on the pages: against the plain oracle, and to the last bit against itself."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.base import Row
from symphony_kernel.executor.native.library import Library
from symphony_kernel.executor.native.pages import NativePages, PoolShape
from symphony_kernel.executor.native.step import flat_step
from symphony_kernel.protocol.limits import PAGE_TOKENS
from torch import Tensor

from tests.support.executor.exact_attention import reference_attention
from tests.support.executor.models import make_row
from tests.support.executor.native import native_library
from tests.support.executor.native_kernels import LayerWork, LoneAttention
from tests.support.kernel.dense_attention import visible_entries

POSITIONS = 4096
PAGES = 700

Float = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def library() -> Library:
    return native_library()


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
    """Rows with their entries, in a pool whose other slots are all NaN."""

    pool: NativePages
    rows: list[Row]
    norms: tuple[Float, Float] | None = None
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

    def work(self, layer: int, members: list[int]) -> LayerWork:
        """Return one layer's work for some of the rows."""
        shape = self.pool.shape
        qkv = np.concatenate([self.qkv[i] for i in members])
        kind = np.float32 if shape.element_bytes == 4 or shape.wide else np.uint16
        out = np.zeros((len(qkv), shape.heads * shape.head_dim), kind)
        cosines, sines = _tables(shape.head_dim)
        q_norm, k_norm = self.norms or (None, None)
        return LayerWork(layer, qkv, out, cosines, sines, q_norm, k_norm)

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
        return reference_attention(queries, both[:, 0], both[:, 1], visible)


def _norm(heads: Tensor, weight: Float, shape: PoolShape) -> Tensor:
    scale = (heads.square().mean(-1, keepdim=True) + shape.norm_epsilon).rsqrt()
    return heads * scale * torch.from_numpy(weight).double()


def _turn(heads: Tensor, row: Row) -> Tensor:
    cosines, sines = (torch.from_numpy(t)[row.positions] for t in _tables(heads.shape[-1]))
    cosine, sine = (t[:, None].double().repeat(1, 1, 2) for t in (cosines, sines))
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return heads * cosine + turned * sine


def _slots(row: Row) -> npt.NDArray[np.int64]:
    entries = np.arange(row.start + len(row.tokens))
    slots: npt.NDArray[np.int64] = (
        row.block_table[entries // PAGE_TOKENS].astype(np.int64) * PAGE_TOKENS
        + entries % PAGE_TOKENS
    )
    return slots


def _rows(
    mix: list[tuple[int, int, bool]], random: np.random.Generator, pages: int = PAGES
) -> list[Row]:
    """Return rows of (new tokens, present entries, whether they are a tree)."""
    free = iter(random.permutation(pages))
    rows = []
    for q, start, is_tree in mix:
        table = np.array([next(free) for _ in range(-(-(start + q) // PAGE_TOKENS))], np.int32)
        parents = [int(random.integers(-1, i)) if i else -1 for i in range(q)] if is_tree else None
        row = make_row(random.integers(0, 9, q), table, start, parents=parents)
        row.positions = random.integers(0, POSITIONS, q).astype(np.int32)
        rows.append(row)
    return rows


def _compute(
    scene: Scene, library: Library, members: list[int], threads: int
) -> list[list[Tensor]]:
    """Return each member's [q, heads, head_dim], layer after layer."""
    scene.pool.structure.threads = threads
    attention = LoneAttention(library, scene.pool)
    attention.plan(flat_step([scene.rows[i] for i in members]))
    works = [scene.work(layer, members) for layer in range(len(scene.pool.shape.windows))]
    attention.compute(works)
    attention.close()
    counts = [len(scene.rows[i].tokens) for i in members]
    shape = scene.pool.shape
    return [
        list(torch.split(_floats(work.out).view(-1, shape.heads, shape.head_dim), counts))
        for work in works
    ]


def _check(scene: Scene, library: Library, threads: int) -> list[list[Tensor]]:
    found = _compute(scene, library, list(range(len(scene.rows))), threads)
    shape = scene.pool.shape
    tolerance = 8e-3 if shape.element_bytes == 2 else 5e-6
    if shape.wide:
        tolerance = 1e-3  # only what goes into the pool is rounded, and seldom the other way
    for layer, window in enumerate(shape.windows):
        for index, mine in enumerate(found[layer]):
            expected = scene.expected(index, window)
            torch.testing.assert_close(mine.double(), expected, rtol=tolerance * 4, atol=tolerance)
    return found


@pytest.fixture
def make_scene(library: Library) -> Iterator["SceneMaker"]:
    maker = SceneMaker(library)
    yield maker
    maker.close()


class SceneMaker:
    """Makes scenes and gives their pools back."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._pools: list[NativePages] = []

    def __call__(
        self,
        shape: PoolShape,
        mix: list[tuple[int, int, bool]],
        seed: int = 0,
        norms: bool = False,
    ) -> Scene:
        random = np.random.default_rng(seed)
        return self.of_rows(shape, _rows(mix, random, shape.pages), random, norms)

    def of_rows(
        self, shape: PoolShape, rows: list[Row], random: np.random.Generator, norms: bool = False
    ) -> Scene:
        pool = NativePages(self._library, shape)
        self._pools.append(pool)
        weights = tuple(random.uniform(0.5, 1.5, shape.head_dim).astype(np.float32) for _ in "qk")
        scene = Scene(pool, rows, (weights[0], weights[1]) if norms else None)
        scene.fill(random)
        return scene

    def close(self) -> None:
        while self._pools:
            self._pools.pop().close()


SMALL = PoolShape(6, 2, 16, 4, PAGES, (None,), 1e-5)
BOTH = pytest.mark.parametrize("element_bytes", [2, 4], ids=["bf16", "fp32"])
TYPES = {"bf16": (2, False), "widened": (2, True), "fp32": (4, False)}


@pytest.fixture(params=TYPES)
def small(request: pytest.FixtureRequest, library: Library) -> PoolShape:
    """A small pool of each type of numbers, and of each way to multiply them."""
    return _typed(library, str(request.param))


def _typed(library: Library, name: str) -> PoolShape:
    element_bytes, wide = TYPES[name]
    if name == "bf16" and not library.computes_bf16:
        pytest.skip("this processor does not multiply bfloat16")
    return replace(SMALL, element_bytes=element_bytes, wide=wide)


MIXES: dict[str, list[tuple[int, int, bool]]] = {
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
def test_every_row_equals_the_oracle(
    make_scene: SceneMaker, library: Library, mix: str, small: PoolShape
) -> None:
    shape = replace(small, windows=(None, 1, 5, 16, 33, 260, 1000))
    _check(make_scene(shape, MIXES[mix], sum(map(ord, mix))), library, threads=2)


@pytest.mark.parametrize("head_dim", [2, 8, 32, 64, 80, 96, 128, 160, 256])
def test_all_sizes_of_heads(
    make_scene: SceneMaker, library: Library, head_dim: int, small: PoolShape
) -> None:
    windows = None, 40
    shape = replace(small, heads=4, head_dim=head_dim, windows=windows, norm_epsilon=1e-6)
    mix = [(1, 300, False), (35, 20, False), (6, 17, True)]
    _check(make_scene(shape, mix, norms=True), library, threads=2)


@pytest.mark.parametrize("heads", [(1, 1), (5, 5), (9, 3), (14, 2), (8, 1), (64, 1), (71, 1)])
def test_all_groups_of_heads(
    make_scene: SceneMaker, library: Library, heads: tuple[int, int], small: PoolShape
) -> None:
    shape = replace(small, heads=heads[0], kv_heads=heads[1], head_dim=64)
    mix = [(1, 600, False), (40, 0, False), (4, 17, True), (1, 3, False)]
    _check(make_scene(shape, mix), library, threads=2)


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
def test_any_step_equals_the_oracle(
    make_scene: SceneMaker,
    library: Library,
    mix: list[tuple[int, int, bool]],
    heads: tuple[int, int],
    head_dim: int,
    name: str,
    windows: tuple[int | None, ...],
    threads: int,
    seed: int,
) -> None:
    if not library.computes_bf16:
        name = name.replace("bf16", "widened")
    small = replace(_typed(library, name), head_dim=head_dim, windows=windows)
    shape = replace(small, heads=heads[0], kv_heads=heads[1])
    _check(make_scene(shape, mix, seed, norms=bool(seed % 2)), library, threads)
    make_scene.close()


def test_entries_far_below_the_others_cost_no_more(library: Library, small: PoolShape) -> None:
    """A weight of 1e-40 is no normal number; products of such took fifty times as long."""
    shape = replace(small, heads=9, kv_heads=3, head_dim=64, pages=65)
    pool = NativePages(library, shape)
    row = make_row([1], np.arange(65, dtype=np.int32), 1024)
    plain = np.ones((1024, 2, 3, 64), np.float32)
    plain[:, 0] = -1 / 64
    plain[::256, 0] = 0  # a block's weights are relative to its own maximum
    attention = LoneAttention(library, pool)
    attention.plan(flat_step([row]))

    def least(nats: float, value: float = 1.0) -> float:
        """Return the seconds of a token whose entries are so far below those of score 0."""
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

    assert max(map(least, (89, 92, 95, 100))) < 10 * least(60)
    assert least(1, value=1e-39) < 10 * least(60)  # as an uploaded file may have them
    attention.close()
    pool.close()


# --- To the last bit ------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 300])
def test_a_row_has_the_same_bits_in_any_company_and_on_any_threads(
    make_scene: SceneMaker, library: Library, window: int | None, small: PoolShape
) -> None:
    shape = replace(small, heads=9, kv_heads=3, head_dim=64, windows=(window,))
    mix = [*MIXES["everything"], (1, 2500, False), (25, 1200, False)]
    scene = make_scene(shape, mix)
    [together] = _compute(scene, library, list(range(len(mix))), threads=2)
    for threads in (1, 2, 5):
        for members in ([10], [11], [8], [9, 3], [5, 11, 8, 0], list(range(len(mix)))):
            [found] = _compute(scene, library, members, threads)
            for index, mine in zip(members, found, strict=True):
                assert torch.equal(mine, together[index]), (threads, members, index)


def test_a_token_has_the_same_bits_in_any_chunk(
    make_scene: SceneMaker, library: Library, small: PoolShape
) -> None:
    shape = replace(small, head_dim=64, windows=(None, 290))
    whole = make_scene(shape, [(600, 0, False)])
    expected = [found[0] for found in _compute(whole, library, [0], threads=2)]
    for sizes in ([600], [1] * 40 + [560], [16, 1, 239, 1, 255, 1, 87], [300, 300]):
        start = 0
        for size in sizes:
            row = whole.rows[0]
            part = make_row(row.tokens[start : start + size], row.block_table, start)
            part.positions = row.positions[start : start + size]
            scene = Scene(whole.pool, [part])
            scene.qkv = [whole.qkv[0][start : start + size]]
            for layer, [found] in enumerate(_compute(scene, library, [0], threads=1)):
                assert torch.equal(found, expected[layer][start : start + size])
            start += size


def test_rows_that_share_pages_have_the_bits_that_they_have_alone(
    make_scene: SceneMaker, library: Library, small: PoolShape
) -> None:
    random = np.random.default_rng(5)
    pages = random.permutation(PAGES).astype(np.int32)
    free = iter(pages[100:])
    rows = []
    # (pages of the trunk, entries): forks after 512, 528 and 1,600 entries, and a stranger
    for trunk, start in ((32, 512), (32, 700), (31, 511), (33, 900), (0, 800), (100, 1600),
                         (100, 1610), (100, 1601), (16, 300), (2, 40), (100, 1605)):  # fmt: skip
        more = -(-(start + 1) // PAGE_TOKENS) - trunk
        table = np.array([*pages[:trunk], *(next(free) for _ in range(more))], np.int32)
        rows.append(make_row([1], table, start))
    shape = replace(small, heads=9, kv_heads=3, head_dim=64, windows=(None, 600, None))
    scene = make_scene.of_rows(shape, rows, random)
    together = _check(scene, library, threads=2)
    for index in range(len(rows)):
        alone = _compute(scene, library, [index], threads=1)
        for layer in range(3):
            assert torch.equal(alone[layer][0], together[layer][index])


def test_padding_between_the_rows_of_qkv_and_out_is_left_alone(
    make_scene: SceneMaker, library: Library
) -> None:
    scene = make_scene(replace(SMALL, head_dim=8), [(20, 30, False), (1, 5, False)])
    work = scene.work(0, [0, 1])
    wide = np.full((21, work.out.shape[1] + 3), 7.0, np.float32)
    padded = np.concatenate((work.qkv, np.full((21, 5), np.nan, np.float32)), axis=1)
    attention = LoneAttention(library, scene.pool)
    attention.plan(flat_step(scene.rows))
    attention.compute([work, replace(work, qkv=padded, out=wide)])
    attention.close()
    np.testing.assert_array_equal(wide[:, :-3], work.out)
    assert (wide[:, -3:] == 7.0).all()


def test_an_attention_plans_one_step_after_another(
    make_scene: SceneMaker, library: Library
) -> None:
    scene = make_scene(SMALL, MIXES["everything"])
    [expected] = _compute(scene, library, list(range(len(scene.rows))), threads=2)
    attention = LoneAttention(library, scene.pool)
    for members in ([0], [8, 9], [1, 4, 8], list(range(len(scene.rows))), [2]):
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
def test_copies_are_those_of_plain_slots(
    library: Library, data: st.DataObject, element_bytes: int
) -> None:
    pages = 6
    shape = PoolShape(4, 2, 6, element_bytes, pages, (None, None))
    pool = NativePages(library, shape)
    random = np.random.default_rng(0)
    slots = np.arange(pages * PAGE_TOKENS)
    high = 2**16 if element_bytes == 2 else 2**31
    for layer in range(2):
        plain = random.integers(0, high, (len(slots), 2, 2, 6))
        kind = np.dtype(np.uint16 if element_bytes == 2 else np.uint32)
        plain = plain.astype(kind).view(np.uint16 if element_bytes == 2 else np.float32)
        pool.write(layer, slots, plain)
    expected = _pool_contents(pool)
    order = st.permutations(range(len(slots)))
    for _ in range(data.draw(st.integers(1, 3))):
        run = data.draw(st.sampled_from([1, 5, 16, 40]))
        begins = [data.draw(st.integers(0, len(slots) - run)) for _ in range(2)]
        scattered = data.draw(order)[: data.draw(st.integers(0, 9))]
        targets = [t for t in scattered if not begins[1] <= t < begins[1] + run]
        sources = data.draw(order)[: len(targets)]
        group = np.array(
            [
                [*range(begins[0], begins[0] + run), *sources],
                [*range(begins[1], begins[1] + run), *targets],
            ],
            np.int64,
        )
        expected[:, group[1]] = expected[:, group[0]]
        pool.copy(group)
    np.testing.assert_array_equal(_pool_contents(pool).view(np.uint8), expected.view(np.uint8))
    pool.close()


@BOTH
def test_poison_fills_its_pages_and_no_others(library: Library, element_bytes: int) -> None:
    shape = PoolShape(2, 2, 24, element_bytes, 5, (None, None))
    pool = NativePages(library, shape)
    assert not _pool_contents(pool).any()
    pool.poison(np.array([3, 1], np.int32))
    contents = _floats(_pool_contents(pool).reshape(2, 5, -1))
    assert contents[:, [1, 3]].isnan().all()
    assert not contents[:, [0, 2, 4]].any()
    pool.close()


def test_a_pool_takes_the_bytes_of_its_entries(library: Library) -> None:
    pool = NativePages(library, PoolShape(9, 3, 64, 2, 10, (None,) * 30))
    assert pool.bytes == 10 * PAGE_TOKENS * 30 * 2 * 3 * 64 * 2
    pool.close()
