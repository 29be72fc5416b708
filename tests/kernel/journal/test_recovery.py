"""A kernel that comes back from its journal is the kernel that died."""

import asyncio
import contextlib
import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from symphony_kernel.journal import recovery
from symphony_kernel.journal.recorder import Recorder
from symphony_kernel.journal.replay import ReplayError
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.lineage import book
from symphony_kernel.kvfs.quotas import Quotas, TenantUsage
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.messages import Op
from symphony_kernel.protocol.sessions import SessionLink, SessionState
from symphony_kernel.scheduler.batcher import StepLimits

from tests.support.kernel.batched_device import InLots
from tests.support.kernel.crashes import CrashingKernelRig, differences, with_crashing_kernel
from tests.support.kernel.rig import A, B, C, Gateway, Worker, options, start, tokens
from tests.support.kernel.scripts import Lip, Script
from tests.support.memory_links import attach_peer, memory_pair
from tests.support.run_by import run_by

WHAT = [
    "prompt", "decode", "fork", "truncate", "extract", "append", "peek", "tree", "pause",
    "complete", "complete", "generate", "share", "share",
]  # fmt: skip
EVERYTHING = [*WHAT, "save", "open", "remove", "advise", "close", "grant", "stop", "luck", "stage"]


class Busy(Lip):
    """Runs a script whose answers are not compared, so that it may make any call."""

    async def run(self) -> list[Any]:
        await asyncio.sleep(self.script.begins_ms / 1000)
        await self.rig.gateway.register(self.instance, tenant=f"t{self.script.tenant}", trace=True)
        self._tell(Op.KV_CREATE, A)
        for what, which, much in self.script.operations:
            with contextlib.suppress(AssertionError, ArithmeticError):  # it is refused something
                await getattr(self, "_" + what)(self.files[which % len(self.files)], much)
        if self.script.begins_ms % 3:
            await self.rig.gateway.end(self.instance)
        return []

    async def _save(self, file: int, much: int) -> None:
        await self._call(Op.KV_SAVE, file, f"n/{much % 3}", much % 2)

    async def _open(self, file: int, much: int) -> None:
        await self._call(Op.KV_OPEN, self._new(), f"n/{much % 3}", 31)

    async def _remove(self, file: int, much: int) -> None:
        await self._call(Op.KV_REMOVE, f"n/{much % 3}")

    async def _advise(self, file: int, much: int) -> None:
        await self._call(Op.KV_ADVISE, file, much % 5, much)

    async def _close(self, file: int, much: int) -> None:
        self._tell(Op.KV_CLOSE, file)

    async def _grant(self, file: int, much: int) -> None:
        """Grants go to a parent or a child: here there is neither."""
        await self._call(Op.KV_GRANT, file, self.instance, 7, f"g{much}")
        await self._call(Op.KV_GRANTED, self._new(), f"g{much}")

    async def _stage(self, file: int, much: int) -> None:
        await self._call(Op.STAGE, much, [[file, 3, "kv"]])
        child = 1000 * self.instance + much
        answer = await self.rig.gateway.register(
            child, f"t{self.script.tenant}", parent=self.instance, stage=much
        )
        assert not answer.errno
        worker = self.rig.worker
        await worker.call(child, Op.KV_GRANTED, A, "kv")
        worker.tell(child, Op.KV_FORK, B, A)
        reply = worker.pred(child, B, tokens(much))
        if much % 2:
            await reply

    async def _stop(self, file: int, much: int) -> None:
        made = self.rig.worker.generate(self.instance, file, tokens(much), max=200, eager=False)
        await asyncio.sleep(much / 3000)
        made.cancel()
        made.take(max(len(made.records) - 1, 1))
        await made.end

    async def _luck(self, file: int, much: int) -> None:
        sample = {"sample": {"temperature": 2.0}}
        self.rig.worker.pred(self.instance, file, tokens(much), options(get=sample))


def scripts(chance: random.Random, lips: int, length: int, what: list[str] = WHAT) -> list[Script]:
    return [
        Script(
            chance.randrange(3),
            chance.randrange(60),
            tuple(
                (chance.choice(what), chance.randrange(6), chance.randrange(1, 90))
                for _ in range(chance.randrange(1, length))
            ),
        )
        for _ in range(lips)
    ]


def compare_now_and_then(folder: Path, seed: int, **given: Any) -> None:
    chance = random.Random(seed)

    async def test(rig: CrashingKernelRig) -> None:
        courses = scripts(chance, 8, 14, EVERYTHING)
        lips = [Busy(rig, i, script) for i, script in enumerate(courses, start=1)]
        running = asyncio.gather(*(lip.run() for lip in lips))
        for _ in range(200):
            await asyncio.sleep(chance.random() / 20)
            assert not differences(rig.recovered_image(), rig.image()), f"seed {seed}"
            if running.done():
                break
        await rig.gateway.check_integrity()
        await running

    with_crashing_kernel(folder, test, log_bytes=20_000, **given)


def test_journal_equals_the_kernel_at_any_moment(tmp_path: Path) -> None:
    for seed in range(3):
        compare_now_and_then(tmp_path / str(seed), seed)


def test_journal_equals_the_kernel_with_few_pages_and_quotas(tmp_path: Path) -> None:
    limits = KernelOptions(
        steps=StepLimits(tokens=64, rows=4, quantum=16),
        tenants=TenantLimits(pages=12, files=30, handles=30),
    )  # what is computed again notes where it came from, and when is the device's doing: not here
    for seed in range(5, 8):
        compare_now_and_then(tmp_path / str(seed), seed, pages=20, options=limits)


@pytest.mark.interpreted
def test_journal_equals_the_kernel_with_unrecomputable_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The charges, and the files that were refused."""
    monkeypatch.setattr(book, "LINEAGE_ENTRIES_MAX", 3)
    monkeypatch.setattr("symphony_kernel.kvfs.filesystem.UNRECOMPUTABLE_DEVICE_SHARE", 0.02)
    refused: list[bool] = []
    allow = Quotas.allow_unrecomputable

    def counted(quotas: Quotas, account: TenantUsage, pages: int) -> None:
        refused.append(True)
        allow(quotas, account, pages)
        refused[-1] = False

    monkeypatch.setattr(Quotas, "allow_unrecomputable", counted)
    given = KernelOptions(places=TierConfig(host_slots=4, pages_a_frame=4))
    compare_now_and_then(tmp_path, 10, pages=256, options=given)
    assert set(refused) == {True, False}


def outcomes(
    folder: Path, courses: list[Script], chance: random.Random | None, **given: Any
) -> list[list[Any]]:
    """Return each LIP's answers; with `chance` the kernel dies again and again."""

    async def test(rig: CrashingKernelRig) -> list[list[Any]]:
        lips = [Lip(rig, i, script) for i, script in enumerate(courses, start=1)]
        running = asyncio.gather(*(lip.run() for lip in lips))
        while chance is not None and not running.done():
            await asyncio.sleep(chance.random() / 10)
            await die_somehow(rig, chance)
            rig.boot()
        results = await running
        await rig.gateway.check_integrity()
        assert not any(peer.lost for peer in rig.peers)
        statistics = await rig.gateway.statistics()
        assert statistics["instances"] == 0
        assert statistics["journal"]
        return results

    return with_crashing_kernel(folder, test, log_bytes=20_000, **given)


async def die_somehow(rig: CrashingKernelRig, chance: random.Random) -> None:
    """Let the kernel die now or within the next record, and stay dead for a while."""
    if chance.random() < 0.5:
        rig.die(chance)
    else:
        deaths = rig.deaths
        rig.doom(chance)
        for _ in range(100):
            await asyncio.sleep(0.001)
            if rig.deaths > deaths:
                break
        else:
            rig.die(chance)
    await asyncio.sleep(chance.choice([0.0, 0.001, 0.02]))


def test_programs_do_not_notice_kernel_deaths(tmp_path: Path) -> None:
    for seed in range(5):
        chance = random.Random(seed)
        courses = scripts(chance, 6, 12)
        folders = [tmp_path / f"{seed} {which}" for which in ("twin", "dying")]
        assert outcomes(folders[1], courses, chance) == outcomes(folders[0], courses, None), seed


def test_programs_under_pressure_do_not_notice_kernel_deaths(tmp_path: Path) -> None:
    places = KernelOptions(places=TierConfig(host_slots=12, pages_a_frame=16, poison=True))
    for seed in range(5, 8):
        chance = random.Random(seed)
        courses = scripts(chance, 6, 10)
        given: dict[str, Any] = {"pages": 40, "options": places}
        died = outcomes(tmp_path / f"{seed} dying", courses, chance, **given)
        assert died == outcomes(tmp_path / f"{seed} twin", courses, None, **given), seed


def test_programs_with_batched_steps_do_not_notice_kernel_deaths(tmp_path: Path) -> None:
    for seed in range(8, 11):
        chance = random.Random(seed)
        courses = scripts(chance, 6, 12, ["prompt", "generate", "generate", "peek", "truncate"])
        twin = outcomes(tmp_path / f"{seed} twin", courses, None)
        assert outcomes(tmp_path / f"{seed} lots", courses, None, device=InLots) == twin, seed
        assert outcomes(tmp_path / f"{seed} dying", courses, chance, device=InLots) == twin, seed


def files(folder: Path, suffix: str = "") -> int:
    return sum(path.name.endswith(suffix) for path in folder.iterdir())


@run_by(with_crashing_kernel, "tmp_path", log_bytes=10_000)
async def test_log_stays_short(
    rig: CrashingKernelRig,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A snapshot takes real time, and the log grows in virtual time: no share of one is the other's.
    monkeypatch.setattr(recovery, "_STALL_SHARE", float("inf"))
    await start(rig)
    for token in range(1, 300):
        await rig.worker.pred(1, A, tokens(token))
        statistics = rig.kernel.statistics()
        assert statistics["journal_log_bytes"] < 13_000
    assert statistics["journal_images"] > 2
    assert files(tmp_path, ".image") == 1
    assert files(tmp_path, ".log") < 5


@run_by(with_crashing_kernel, "tmp_path", log_bytes=1 << 30)
async def test_full_disk_gives_the_journal_up_and_kernel_continues(
    rig: CrashingKernelRig,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    worker = await start(rig)
    await worker.pred(1, A, tokens(1, 2, 3))
    monkeypatch.setattr(os, "posix_fallocate", full)
    large = options(at="all", get="logits")
    for _ in range(3):  # 4 MiB each, in a log of 8
        assert isinstance(await worker.pred(1, A, tokens(*range(1, 257)), large), bytes)
    assert await worker.call(1, Op.KV_LEN, A) == 3 + 3 * 256
    await check_given_up(rig.gateway, tmp_path, caplog)


@pytest.mark.interpreted
@run_by(with_crashing_kernel, "tmp_path")
async def test_failed_snapshot_gives_the_journal_up_and_runs_continue(
    rig: CrashingKernelRig,
    *,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = await start(rig)
    await worker.pred(1, A, tokens(1))
    instance = rig.kernel._processes.get(1)
    assert instance is not None
    instance.handles.get(A).file.path = object()  # type: ignore[assignment]
    assert rig.kernel._recovery is not None
    rig.kernel._recovery.write_snapshot()
    await worker.pred(1, A, tokens(2))
    await check_given_up(rig.gateway, tmp_path, caplog)


async def check_given_up(gateway: Gateway, folder: Path, log: pytest.LogCaptureFixture) -> None:
    assert (await gateway.statistics())["journal"] is False
    assert files(folder) == 0
    assert "GIVEN UP" in log.text


@run_by(with_crashing_kernel, "tmp_path")
async def test_recovered_eviction_order_uses_the_recovered_tables(rig: CrashingKernelRig) -> None:
    worker = await start(rig)
    await worker.pred(1, A, tokens(*range(1, 65)))
    assert await worker.call(1, Op.KV_OFFER, A) == 64
    rig.die_and_boot()
    kvfs = rig.kernel._kvfs
    assert kvfs.prefix_cache.references.sum() == 4
    assert kvfs.eviction.eviction_order._cached is kvfs.prefix_cache.references


@run_by(with_crashing_kernel, "tmp_path")
async def test_unrecomputable_file_after_a_death_answers_eio(
    rig: CrashingKernelRig, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "LINEAGE_ENTRIES_MAX", 3)  # too few for the tree's lineage
    worker = await start(rig)
    tree = options(parents=[-1, 0, 0, 1, 1, 2, 2], at="all")
    await worker.pred(1, A, tokens(*range(1, 8)), tree)
    worker.tell(1, Op.KV_FORK, B, A)
    worker.create(1, C)
    await worker.pred(1, C, tokens(*range(1, 8)))
    rig.die_and_boot()
    for lost in (A, B):
        assert await worker.pred(1, lost, tokens(9)) == -Errno.EIO
        assert await worker.call(1, Op.KV_LEN, lost) == -Errno.EIO
    assert await worker.call(1, Op.KV_LEN, C) == 7
    assert isinstance(await worker.pred(1, C, tokens(9)), bytes)
    await rig.gateway.check_integrity()


@run_by(with_crashing_kernel, "tmp_path")
async def test_large_results_are_sent_again_after_a_death(rig: CrashingKernelRig) -> None:
    chance = random.Random(3)
    worker = await start(rig)
    large = options(at="all", get="logits")
    for _ in range(3):
        reply = worker.pred(1, A, tokens(*range(1, 257)), large)
        await die_somehow(rig, chance)
        rig.boot()
        result = await reply
        assert isinstance(result, bytes)
        assert len(result) == 4 << 20
    assert await worker.call(1, Op.KV_LEN, A) == 3 * 256


@pytest.mark.interpreted
@pytest.mark.parametrize("somebody_enters", [False, True])
@run_by(with_crashing_kernel, "tmp_path")
async def test_step_results_survive_a_death_before_they_are_sent(
    rig: CrashingKernelRig, *, somebody_enters: bool
) -> None:
    """Also where another peer connects in between, whose record is of that turn, too."""
    for instance in (1, 2):
        await rig.gateway.register(instance)
        await rig.worker.call(instance, Op.KV_CREATE, A)
    rig.worker.generate(2, A, tokens(5), max=200)  # behind each step comes another
    kernel, loop = rig.kernel, asyncio.get_running_loop()
    stepper = kernel._step_loop
    stepper._follows = False
    plan = stepper.plan

    def plan_and_die() -> None:
        plan()
        hooks = kernel.hooks
        assert hooks is not None
        if kernel._syscalls.context.unsent and not hooks.depth and rig.alive.is_set():
            if somebody_enters:
                kernel.attach_session(kernel.make_session(SessionState(b"x" * 16), "v"), "v")
            rig.alive.clear()
            hooks.abandon()
            loop.call_soon(rig.die, random.Random(1))
            loop.call_later(1.0, rig.boot)

    made = rig.worker.generate(1, A, tokens(5), max=12)
    stepper.plan = plan_and_die  # type: ignore[method-assign]
    assert await made.end == b""
    assert rig.deaths == 1
    assert len(made.ids) == 12
    assert await rig.worker.call(1, Op.KV_LEN, A) == 12


@run_by(with_crashing_kernel, "tmp_path")
async def test_abandoned_journal_gives_no_receipt(rig: CrashingKernelRig) -> None:
    """A worker with a receipt for a frame that was not recorded could not resume."""
    await start(rig)
    session = rig.worker.link
    assert isinstance(session, SessionLink)
    hooks = rig.kernel.hooks
    assert hooks is not None
    hooks.abandon()  # as `Kernel.stop_with` does
    rig.worker.tell(1, Op.KV_CREATE, B)
    session._want_receipt()
    await asyncio.sleep(0.01)
    rig.die_and_boot()
    assert await rig.worker.call(1, Op.KV_LEN, B) == 0
    assert not any(peer.lost for peer in rig.peers)


@run_by(with_crashing_kernel, "tmp_path")
async def test_peers_without_a_session_end_with_the_kernel(rig: CrashingKernelRig) -> None:
    ours, theirs = memory_pair()
    attach_peer(rig.kernel, "v", ours)
    passer = Worker(theirs)
    assert (await rig.gateway.register(1, worker="v")).errno == 0
    assert (await rig.gateway.register(2, worker="w")).errno == 0
    passer.tell(1, Op.KV_CREATE, A)
    rig.worker.create(2, A)
    await asyncio.gather(*(w.pred(i, A, tokens(5)) for i, w in ((1, passer), (2, rig.worker))))
    rig.die_and_boot()
    assert await rig.worker.call(2, Op.KV_LEN, A) == 1
    assert (await rig.gateway.statistics())["instances"] == 1
    assert (await rig.gateway.end(1)).value["completion_tokens"] == 1
    await rig.gateway.check_integrity()


@run_by(with_crashing_kernel, "tmp_path")
async def test_journal_that_cannot_be_replayed_raises(
    rig: CrashingKernelRig, *, tmp_path: Path
) -> None:
    await rig.gateway.register(1)
    recorder = rig.kernel.hooks
    assert isinstance(recorder, Recorder)
    recorder.done(99, 0)  # no pred has this number
    recorder.commit()
    rig.die(random.Random(0))
    with pytest.raises(ReplayError):
        rig.boot()
    shutil.rmtree(tmp_path)
    rig.boot()
