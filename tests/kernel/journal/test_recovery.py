"""A kernel that comes back from its journal is the kernel that died."""

import asyncio
import random
from pathlib import Path
from typing import Any

from symphony_kernel.protocol.messages import Op

from tests.kernel.test_kernel_courses import Lip, Script
from tests.support.dying import DyingRig, differences, with_dying_kernel
from tests.support.kernels import A, Gateway, Worker, tokens


class View:
    """What a course's LIP takes for its rig."""

    def __init__(self, gateway: Gateway, worker: Worker) -> None:
        self.gateway, self.worker = gateway, worker


WHAT = [
    "prompt", "decode", "fork", "truncate", "extract", "append", "peek", "tree", "pause",
    "complete", "complete", "generate",
]  # fmt: skip


PLAIN = [what for what in WHAT if what not in ("extract", "append", "tree")]


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


def test_one_pred(tmp_path: Path) -> None:
    async def test(rig: DyingRig, gateway: Gateway, worker: Worker) -> None:
        await gateway.register(1)
        worker.tell(1, Op.KV_CREATE, A)
        await worker.pred(1, A, tokens(*range(1, 40)))
        assert not differences(rig.recovered_image(), rig.image())

    with_dying_kernel(tmp_path, test)


def compare_now_and_then(folder: Path, seed: int) -> None:
    chance = random.Random(seed)

    async def test(rig: DyingRig, gateway: Gateway, worker: Worker) -> None:
        view: Any = View(gateway, worker)
        lips = [Lip(view, i, s) for i, s in enumerate(scripts(chance, 6, 12), start=1)]
        running = asyncio.gather(*(lip.run() for lip in lips))
        compared = 0
        while not running.done():
            await asyncio.sleep(chance.random() / 30)
            assert not differences(rig.recovered_image(), rig.image()), f"seed {seed}"
            compared += 1
        assert compared > 5
        await running

    with_dying_kernel(folder, test, log_bytes=20_000)


def test_at_any_moment_the_journal_says_what_the_kernel_is(tmp_path: Path) -> None:
    for seed in range(6):
        compare_now_and_then(tmp_path / str(seed), seed)


def outcomes(folder: Path, courses: list[Script], chance: random.Random | None) -> list[list[Any]]:
    """Return what each LIP hears; with `chance` of a kernel that dies again and again."""

    async def test(rig: DyingRig, gateway: Gateway, worker: Worker) -> list[list[Any]]:
        view: Any = View(gateway, worker)
        lips = [Lip(view, i, script) for i, script in enumerate(courses, start=1)]
        running = [asyncio.create_task(lip.run()) for lip in lips]
        while chance is not None and not all(task.done() for task in running):
            await asyncio.sleep(chance.random() / 10)
            rig.die(chance)
            await asyncio.sleep(chance.choice([0.0, 0.001, 0.02]))
            rig.boot()
        results = [await task for task in running]
        await gateway.check_integrity()
        assert not any(peer.lost for peer in rig.peers)
        assert (await gateway.statistics())["instances"] == 0
        return results

    return with_dying_kernel(folder, test, log_bytes=20_000)


def test_nobody_notices_that_the_kernel_dies(tmp_path: Path) -> None:
    for seed in range(4):
        chance = random.Random(seed)
        courses = scripts(chance, 6, 12, PLAIN)
        folders = [tmp_path / f"{seed} {which}" for which in ("twin", "dying")]
        assert outcomes(folders[1], courses, chance) == outcomes(folders[0], courses, None), seed
