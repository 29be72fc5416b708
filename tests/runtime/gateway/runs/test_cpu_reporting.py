"""The gateway's processor time for workers' frames: timed while tenants share it, and by run."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import TENANT_PASS_SECONDS
from symphony_runtime.gateway.links.kernel_limits import KernelLimits
from symphony_runtime.gateway.links.links import KernelLink, Worker
from symphony_runtime.gateway.links.models import Models, ServedModel
from symphony_runtime.gateway.programs.shipped import OWNER
from symphony_runtime.gateway.runs.cpu_reporting import CpuReporter
from symphony_runtime.gateway.runs.service import Runs as LiveRuns
from symphony_runtime.gateway.runs.worker_requests import WorkerRequests
from symphony_runtime.gateway.storage.store import Store

from tests.support.waiting import spin

WORKER = cast(Worker, SimpleNamespace(name="w"))
RUNS = {1: "a", 2: "a", 3: "b"}
SPIN_SECONDS = 0.004


class Runs:
    """Spends some time on each frame."""

    def __init__(self, tenants: int) -> None:
        self.tenants = tenants
        self.taken: list[Any] = []
        self.models: dict[int, ServedModel] = {}

    def worker_output(self, worker: Worker, messages: list[Any]) -> None:
        assert worker is WORKER
        self._take(messages)

    def worker_message(self, worker: Worker, message: m.Message) -> None:
        assert worker is WORKER
        self._take(message)

    def worker_lost(self, worker: Worker) -> None:
        self.taken.append(worker)

    def run_of(self, worker: Worker, instance: Any) -> Any:
        assert worker is WORKER
        known = isinstance(instance, int) and instance in RUNS
        return SimpleNamespace(record=SimpleNamespace(seq=instance)) if known else None

    def live_by_tenant(self) -> dict[str, int]:
        return dict.fromkeys(map(str, range(self.tenants)), 1)

    def find_instance(self, instance: int) -> Any:
        return instance if instance in self.models else None

    def model_of(self, run: Any) -> ServedModel:
        return self.models[run]

    def _take(self, what: Any) -> None:
        self.taken.append(what)
        spin(SPIN_SECONDS)


class Kernel:
    """Adds up the reports."""

    def __init__(self) -> None:
        self.spent: dict[int | str, int] = {}
        self.asked: list[int | str] = []
        self.on_pace: Callable[[str, float], None] = lambda _tenant, _seconds: None

    def report_cpu(self, spent: Mapping[int | str, int]) -> None:
        for whose, microseconds in spent.items():
            if not microseconds:
                self.asked.append(whose)
                continue
            self.spent[whose] = self.spent.get(whose, 0) + microseconds


def make(tenants: int) -> tuple[CpuReporter, Runs, Kernel]:
    runs, kernel = Runs(tenants), Kernel()
    store = cast(Store, SimpleNamespace(crash_log=SimpleNamespace()))
    live, requests = cast(LiveRuns, runs), cast(WorkerRequests, runs)
    link = cast(KernelLink, kernel)
    models = Models([ServedModel(link, cast(KernelLimits, None), ["worker-0"])])
    return CpuReporter(live, requests, models, store), runs, kernel


def test_lone_tenant_is_not_charged() -> None:
    costs, runs, kernel = make(1)
    costs.worker_output(WORKER, [[1, b"x"]])
    costs.worker_message(WORKER, m.Received(1, 1, 1))
    costs.charge_crash_log([(1, 1, "message", b"x")], 1.0)
    assert len(runs.taken) == 2
    assert not kernel.spent


def test_frame_is_divided_between_its_runs() -> None:
    costs, runs, kernel = make(2)
    frame = [[1, b"x" * 31_744], [2, b""], [3, b"x" * 31_744], [99, b"x"], "strange", [], [None, 1]]
    for _ in range(20):
        costs.worker_output(WORKER, frame)
    assert runs.taken == [frame] * 20, "strange parts are passed on, too"
    assert set(kernel.spent) == {1, 2, 3}
    assert kernel.spent[1] == kernel.spent[3]
    assert 28 <= kernel.spent[1] / kernel.spent[2] <= 36


@pytest.mark.parametrize(
    "message",
    [
        m.Logs([[2, 1, b"line"]]),
        m.Ask(1, "channel_send", {"instance": 2, "name": "c", "item": b"x"}),
        m.Ask(1, "spawn", {"parent": 2}),
        m.Received(2, 1, 1),
        m.Ended(2, "exited", 0, "", {}, {}),
    ],
)
def test_other_frame_is_charged_to_the_run_that_it_names(message: m.Message) -> None:
    costs, runs, kernel = make(2)
    for _ in range(2):
        costs.worker_message(WORKER, message)
    assert runs.taken == [message] * 2
    assert set(kernel.spent) == {2}
    costs.worker_message(WORKER, m.Unask(7))
    costs.worker_lost(WORKER)
    assert runs.taken[-1] is WORKER


def test_crash_log_time_is_charged_to_runs() -> None:
    costs, _, kernel = make(2)
    costs.worker_message(WORKER, m.Received(1, 1, 1))
    costs.charge_crash_log([(3, 1, "message", b"x"), (3, 2, "log", {"text": "x"})], 0.5)
    while 3 not in kernel.spent:
        costs.worker_message(WORKER, m.Received(1, 1, 1))
    assert kernel.spent[3] == 500_000


def test_time_of_no_run_is_charged_to_its_tenant() -> None:
    costs, _, kernel = make(1)  # tenant "0" has a run
    costs.charge("0", 1.0)
    assert not kernel.spent, "it is alone"
    costs.charge(OWNER, 1.0)
    assert not kernel.spent, "work for the whole server is charged to no tenant"
    while "uploads" not in kernel.spent:
        costs.charge("uploads", 0.5)
    assert kernel.spent == {"uploads": 500_000}


def test_throttled_tenant_rests_while_others_have_runs() -> None:
    costs, runs, kernel = make(1)
    assert costs.rest("uploads") == 0.0
    kernel.on_pace("uploads", 60.0)
    kernel.on_pace("0", 60.0)
    assert 0.0 < costs.rest("uploads") <= 60.0
    assert costs.rest("another") == 0.0
    assert costs.rest("0") == 0.0, "no other tenant has a run"
    kernel.on_pace("uploads", 0.0)
    assert costs.rest("uploads") == 0.0
    kernel.on_pace("uploads", 60.0)
    runs.tenants = 0
    deadline = time.monotonic() + 20
    while costs.rest("uploads"):
        assert time.monotonic() < deadline, "it rests although all others have gone"


async def test_pause_goes_on_until_the_kernel_ends_it() -> None:
    costs, _, kernel = make(1)
    kernel.on_pace("requests", 0.01)
    waiting = [asyncio.create_task(costs.wait_pause("requests")) for _ in range(3)]
    await asyncio.sleep(0.1)
    assert kernel.asked == ["requests"], "once, whichever of them asks"
    kernel.on_pace("requests", 0.05)
    await asyncio.sleep(0.2)
    assert kernel.asked == ["requests"] * 2
    assert not any(task.done() for task in waiting)
    kernel.on_pace("requests", 0.0)
    async with asyncio.timeout(20):
        await asyncio.gather(*waiting)


async def test_pause_ends_if_the_kernel_does_not_answer() -> None:
    costs, _, kernel = make(1)
    kernel.on_pace("requests", 0.01)
    began = time.monotonic()
    async with asyncio.timeout(20):
        await costs.wait_pause("requests")
    assert time.monotonic() - began > 1.0
    assert costs.rest("requests") == 0.0
    assert kernel.asked == ["requests"]


def test_commit_is_charged_to_runs_and_tenants() -> None:
    costs, _, kernel = make(1)
    costs.charge_commit({1: 0.5, "0": 0.5})
    assert not kernel.spent, "one that is alone is not charged"
    costs, _, kernel = make(2)
    costs.worker_message(WORKER, m.Received(3, 1, 1))
    while 1 not in kernel.spent or "0" not in kernel.spent:
        costs.charge_commit({1: 0.5, "0": 0.25})
    assert kernel.spent[1] % 500_000 == 0
    assert kernel.spent["0"] % 250_000 == 0


async def test_request_is_charged_for_its_time_and_not_its_waits() -> None:
    costs, _, kernel = make(1)

    async def request() -> str:
        for _ in range(4):
            spin(SPIN_SECONDS)
            await asyncio.sleep(5 * SPIN_SECONDS)
        return "answer"

    assert await costs.charge_awaitable("requests", request()) == "answer"
    while "end" not in kernel.spent:
        costs.charge("end", 1e-5)
    assert 4 * SPIN_SECONDS <= kernel.spent["requests"] / 1e6 < 8 * SPIN_SECONDS


async def test_request_that_fails_or_is_cancelled_is_charged() -> None:
    costs, _, kernel = make(1)
    ends: list[str] = []

    async def fails() -> None:
        spin(SPIN_SECONDS)
        raise ValueError("bad")

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append("cancelled")
            spin(SPIN_SECONDS)
            raise

    async def charged(tenant: str, work: Coroutine[Any, Any, None]) -> None:
        await costs.charge_awaitable(tenant, work)

    with pytest.raises(ValueError, match="bad"):
        await charged("fails", fails())
    task = asyncio.create_task(charged("waits", waits()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["cancelled"]
    while not {"fails", "waits"} <= kernel.spent.keys():
        costs.charge("end", 1e-5)
    assert min(kernel.spent["fails"], kernel.spent["waits"]) >= 1e6 * SPIN_SECONDS


async def test_flood_of_slices_lets_others_requests_pass() -> None:
    costs, _, _ = make(1)
    done: list[str] = []

    async def request(tenant: str, slices: int) -> None:
        for _ in range(slices):
            spin(TENANT_PASS_SECONDS / 2)
            done.append(tenant)
            await asyncio.sleep(0)

    async def charged(tenant: str, slices: int) -> None:
        await costs.charge_awaitable(tenant, request(tenant, slices))

    flood = [asyncio.create_task(charged("flood", 4)) for _ in range(50)]
    await asyncio.sleep(0)
    assert done.count("flood") <= 4, "in the first pass"
    await asyncio.create_task(charged("other", 5))
    assert done.count("flood") <= 4 * 8, "in the passes of the other's five slices"
    await asyncio.gather(*flood)
    assert done.count("flood") == 200


async def test_request_of_a_throttled_tenant_begins_later() -> None:
    costs, _, kernel = make(1)
    kernel.on_pace("requests", 0.05)
    began = time.monotonic()
    with pytest.raises(StopIteration):  # it waits for nothing
        costs.wait_pause("others").send(None)
    await costs.wait_pause("requests")
    assert time.monotonic() - began >= 0.05


def test_time_of_a_run_goes_to_the_kernel_of_its_model() -> None:
    runs, kernels = Runs(2), (Kernel(), Kernel())
    none = cast(KernelLimits, None)
    models = Models([ServedModel(cast(KernelLink, kernel), none, []) for kernel in kernels])
    runs.models = {1: models[0], 2: models[1], 3: models[1]}
    store = cast(Store, SimpleNamespace(crash_log=SimpleNamespace()))
    live, requests = cast(LiveRuns, runs), cast(WorkerRequests, runs)
    costs = CpuReporter(live, requests, models, store)
    while not (kernels[1].spent and "0" in kernels[0].spent):
        costs.worker_output(WORKER, [[1, b"x"], [2, b"x"], [3, b"x"]])
        costs.charge("0", 0.001)
    assert set(kernels[0].spent) == {1, "0"}, "work of no run is the first model's"
    assert set(kernels[1].spent) == {2, 3}
