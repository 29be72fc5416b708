"""The kernel's peers: workers that forge calls, come and go, and the gateway's questions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.ipc.server import Server
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.links import Link
from symphony_kernel.protocol.messages import Op
from symphony_kernel.protocol.sessions import Dialer, LinkLostError, SessionLink
from symphony_kernel.scheduler.batcher import StepLimits

from tests.support.kernel.rig import (
    PROMPT,
    A,
    B,
    KernelRig,
    decode,
    options,
    start,
    tokens,
    with_kernel,
)
from tests.support.memory_links import memory_pair
from tests.support.run_by import run_by


@run_by(with_kernel)
async def test_worker_that_forges_an_instance_is_ignored(rig: KernelRig) -> None:
    intruder = rig.attach_worker("w2")
    worker = await start(rig)
    await worker.pred(1, A, PROMPT)
    for forged in (1, 2, 0, -1, 2**63, "1", None, [1]):
        intruder.link.send(
            m.encode(m.Calls([[forged, Op.KV_TRUNCATE, 0, A, 0], [forged, Op.KV_CLOSE, 0, A]]))
        )
    await asyncio.sleep(0)
    assert await worker.call(1, Op.KV_LEN, A) == 59
    assert (await rig.gateway.statistics())["dropped"] == 16
    assert not intruder.closed.is_set()


@pytest.mark.parametrize(
    "frame",
    [
        [m.Register.KIND, 1, 5, "t", "w", 0, 0, {}], [m.End.KIND, 1, 1],
        [m.Ask.KIND, 1, "statistics", {}], [m.Calls.KIND, "calls"], [m.Calls.KIND], [99], ["x"],
        [None, None],
    ],
)  # fmt: skip
@run_by(with_kernel)
async def test_worker_that_breaks_the_protocol_is_cut_off(
    rig: KernelRig, *, frame: list[Any]
) -> None:
    second = rig.attach_worker("w2")
    await start(rig, 1)
    assert (await rig.gateway.register(2, worker="w2")).errno == 0
    second.tell(2, Op.KV_CREATE, A)
    kept = second.pred(2, A, PROMPT)
    rig.worker.pred(1, A, PROMPT)
    rig.worker.link.send(frame)
    rig.worker.tell(1, Op.KV_CREATE, B)
    await rig.worker.closed.wait()
    assert (await rig.gateway.end(1)).errno == 0  # and what it had used
    assert (await rig.gateway.end(1)).errno == -Errno.ENOENT
    assert isinstance(await kept, bytes), "the other worker's instances continue"
    await rig.gateway.check_integrity()


@pytest.mark.parametrize(
    "call",
    [
        None, 5, "x", [], [1], [1, Op.KV_LEN], [1, Op.KV_LEN, 7, A, A, A], [1, 99, 7],
        [1, Op.PRED, 7, A, "tokens", None, b""], [1, Op.PRED, 7, A, b"\0" * 3, None, b""],
        [1, Op.KV_CREATE, 0, -5], [1, Op.CANCEL, 0, "x"], [1, Op.STAGE, 7, 1, [[A]]],
        [1, Op.KV_OPEN, 7, B, b"\xff", 31], [1, "x", 7], [1, Op.KV_LEN, -1, A], [{}, [], {}],
    ],
)  # fmt: skip
@run_by(with_kernel)
async def test_call_that_is_malformed_affects_no_other(rig: KernelRig, *, call: Any) -> None:
    worker = await start(rig)
    await worker.pred(1, A, PROMPT)
    answer = worker.replies[1, 7] = asyncio.get_running_loop().create_future()
    worker.link.send([m.Calls.KIND, [call]])
    (length,) = worker.calls((1, Op.KV_LEN, A))
    assert await length == 59
    counted = await rig.gateway.statistics()
    if answer.done():
        result = answer.result()
        assert isinstance(result, int)
        assert result < 0
    else:
        assert counted["dropped"] + counted["failed"] == 1, "it wanted no reply, or has no instance"


@run_by(with_kernel)
async def test_lost_worker_ends_its_instances_and_a_lost_gateway_all(rig: KernelRig) -> None:
    second = rig.attach_worker("w2")
    await start(rig, 1)
    await rig.gateway.register(2, worker="w2")
    rig.worker.link.close()
    await asyncio.sleep(0.001)
    assert (await rig.gateway.statistics())["instances"] == 1
    assert (await rig.gateway.register(3, worker="w")).errno == -Errno.EPIPE
    rig.gateway.link.close()
    await asyncio.sleep(0.001)
    assert rig.kernel.statistics()["instances"] == 0
    gateway = rig.attach_gateway()
    assert (await gateway.register(2, worker="w2")).errno == 0
    second.tell(2, Op.KV_CREATE, A)
    assert isinstance(await second.pred(2, A, PROMPT), bytes)


@run_by(with_kernel)
async def test_gateway_questions_have_answers_or_an_errno(rig: KernelRig) -> None:
    worker = await start(rig)
    await worker.pred(1, A, PROMPT)
    assert await worker.call(1, Op.KV_SAVE, A, "prompts/one", 0) == 0
    (listed,) = (await rig.gateway.ask("kv_list", tenant="t", prefix="prompts/")).value
    assert (listed["path"], listed["len"]) == ("prompts/one", 59)
    assert (await rig.gateway.ask("kv_list", tenant="other", prefix="")).value == []
    stat = await rig.gateway.ask("kv_stat", tenant="t", path="prompts/one")
    assert listed.items() <= stat.value.items()
    assert (await rig.gateway.ask("kv_remove", tenant="t", path="prompts/one")).errno == 0
    again = await rig.gateway.ask("kv_stat", tenant="t", path="prompts/one")
    assert again.errno == -Errno.ENOENT
    for what, args in (("kv_stat", {"tenant": "t"}), ("kv_list", {"tenant": 5, "prefix": ""})):
        assert (await rig.gateway.ask(what, **args)).errno == -Errno.EINVAL
    assert (await rig.gateway.ask("no such thing")).errno == -Errno.ENOSYS


@run_by(with_kernel)
async def test_integrity_is_checked_during_steps_without_a_pause(
    rig: KernelRig,
) -> None:
    async def busy(instance: int) -> None:
        worker = await start(rig, instance)
        await decode(worker, instance, A, 3, 60)

    lips = [asyncio.create_task(busy(instance)) for instance in range(1, 6)]
    for _ in range(10):
        await asyncio.sleep(0.03)
        await rig.gateway.check_integrity()
    await asyncio.gather(*lips)


@run_by(
    with_kernel,
    executor=lambda clock: SimulatedExecutor(clock, 256, costs=CostModel(), hashed=False),
    kernel_options=KernelOptions(steps=StepLimits(tokens=4096)),
)
async def test_results_that_are_large_are_split_over_frames(rig: KernelRig) -> None:
    worker = await start(rig)
    for instance in range(2, 8):
        await start(rig, instance)
    logits = options(at="all", get="logits")
    calls = [(i, Op.PRED, A, tokens(*range(1, 257)), None, logits) for i in range(1, 8)]
    results = await asyncio.gather(*worker.calls(*calls))
    assert {len(result) for result in results if isinstance(result, bytes)} == {4 << 20}
    assert worker.frames >= 2


# --- Sessions ------------------------------------------------------------------------------------
class Listener:
    """A peer's side of a session with the kernel's server, on memory links."""

    def __init__(self, server: Server, role: str, name: str) -> None:
        self.server = server
        self.received: list[m.Message] = []
        self.welcomes: list[m.Welcome] = []
        self.ended = asyncio.Event()
        self.dialer = Dialer(role, name, SECRET, lambda f: self.received.append(m.decode(f)), self)

    async def connect(self) -> tuple[Link, asyncio.Event]:
        ours, theirs = memory_pair()
        self.server.accept(theirs)
        return ours, await self.dialer.connect(ours)

    def send(self, message: m.Message) -> None:
        assert self.dialer.session is not None
        self.dialer.session.send(m.encode(message))

    def session_begun(self, session: SessionLink, welcome: m.Welcome) -> None:
        self.welcomes.append(welcome)

    def session_resumed(self, welcome: m.Welcome) -> None:
        self.welcomes.append(welcome)

    def session_cut(self) -> None:
        pass

    def session_ended(self) -> None:
        self.ended.set()


SECRET = b"s" * 16


def with_sessions(test: Callable[[KernelRig, Listener, Listener], Awaitable[None]]) -> None:
    """Run a kernel whose gateway and worker "v" have sessions; "v" runs instance 1."""

    async def whole(rig: KernelRig) -> None:
        rig.gateway.link.close()
        await asyncio.sleep(0.001)
        server = Server(rig.kernel, {"gateway": SECRET, "v": SECRET})
        gateway, worker = Listener(server, "gateway", "gateway"), Listener(server, "worker", "v")
        await gateway.connect()
        await worker.connect()
        gateway.send(m.Register(1, 1, "t", "v", 0, 0, {}))
        await test(rig, gateway, worker)

    with_kernel(whole)


@run_by(with_sessions)
async def test_session_that_is_cut_keeps_its_instances(
    rig: KernelRig, gateway: Listener, worker: Listener
) -> None:
    worker.send(m.Calls([[1, Op.KV_CREATE, 0, A]]))
    for seq, who in enumerate((worker, gateway, worker), start=5):
        link, over = await who.connect()
        worker.send(m.Calls([[1, Op.PRED, seq, A, PROMPT, None, b""]]))
        link.abort()
        await over.wait()
        await asyncio.sleep(0.1)  # a reply is ready while the peer is away
    worker.send(m.Calls([[1, Op.KV_LEN, 9, A]]))
    await worker.connect()
    await gateway.connect()
    await asyncio.sleep(0.3)
    assert rig.kernel.statistics()["instances"] == 1
    frames = [message for message in worker.received if isinstance(message, m.Replies)]
    replies = [reply for frame in frames for reply in frame.replies]
    assert [seq for _, seq, _ in replies] == [5, 6, 7, 9]
    assert replies[-1][2] == 3 * 59
    assert gateway.received == [m.Answer(1, 0, 0)]
    assert [w.resumed for w in worker.welcomes] == [False] + [True] * 3
    assert not worker.ended.is_set()
    assert worker.welcomes[0].about
    assert not worker.welcomes[1].about


@run_by(with_sessions)
async def test_session_that_begins_ends_the_one_before(
    rig: KernelRig, gateway: Listener, worker: Listener
) -> None:
    await asyncio.sleep(0.01)
    assert rig.kernel.statistics()["instances"] == 1
    successor = Listener(worker.server, "worker", "v")
    await successor.connect()
    assert rig.kernel.statistics()["instances"] == 0
    with pytest.raises(LinkLostError):
        await worker.connect()
    assert worker.ended.is_set()
    gateway.send(m.Register(2, 1, "t", "v", 0, 0, {}))
    await asyncio.sleep(0.01)
    assert gateway.received[-1] == m.Answer(2, 0, 0)
    await Listener(worker.server, "gateway", "gateway").connect()
    assert rig.kernel.statistics()["instances"] == 0


@pytest.mark.parametrize("frame", [[m.Receipt.KIND, 99], [m.End.KIND, 1, 1], [m.Hello.KIND]])
@run_by(with_sessions)
async def test_session_whose_peer_breaks_the_protocol_ends(
    rig: KernelRig, gateway: Listener, worker: Listener, *, frame: list[Any]
) -> None:
    link, over = await worker.connect()
    link.send(frame)
    await over.wait()
    assert rig.kernel.statistics()["instances"] == 0
    with pytest.raises(LinkLostError):
        await worker.connect()
    await worker.connect()
