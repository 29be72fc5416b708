"""Several models in the gateway: which one a name or a worker is of, and what all kernels say."""

import asyncio
from typing import Any, cast

import pytest
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_runtime.gateway.links.kernel_limits import KernelLimits
from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink
from symphony_runtime.gateway.links.models import Models, ServedModel, merge_by_key


class Kernel:
    """A kernel's link with one answer, or an error for any question."""

    def __init__(self, name: str, answer: Any, *, ready: bool = True) -> None:
        self.about = {"model": {"name": name}}
        self.ready = ready
        self._answer = answer

    async def ask(self, what: str, **args: Any) -> Any:
        assert (what, args) in (("waiting", {}), ("lips", {"tenant": "t"}))
        if self._answer is None:  # it hangs
            await asyncio.Event().wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def models_of(*kernels: Kernel, named: bool = True) -> Models:
    none = cast(KernelLimits, None)
    return Models(
        [
            ServedModel(
                cast(KernelLink, kernel), none, [f"worker-{number}"],
                kernel.about["model"]["name"] if named else "",
            )
            for number, kernel in enumerate(kernels)
        ]
    )  # fmt: skip


def test_names_and_workers_find_their_model() -> None:
    models = models_of(Kernel("a", {}), Kernel("b", {}, ready=False))
    first, second = models
    assert models.default is first
    assert [models.find(name) for name in ("a", "b", "c", "")] == [first, second, None, None]
    assert [models.of_worker(f"worker-{n}") for n in range(2)] == [first, second]


def test_kernel_of_one_model_says_its_name() -> None:
    models = models_of(Kernel("tiny", {}), named=False)
    assert (models.default.name, models.named) == ("tiny", True)
    assert models.find("tiny") is models.of_worker("worker-of-any-name") is models.default
    models.default.kernel.about = {}  # it was not linked yet
    assert (models.default.name, models.named) == ("", False)


async def test_kernels_that_are_away_are_left_out_of_the_answers() -> None:
    away = KernelAwayError("away")
    lips = (
        Kernel("a", {1: "x"}),
        Kernel("b", away),
        Kernel("c", {3: "z"}),
        Kernel("d", {}, ready=False),
    )
    found = await models_of(*lips).ask_each("lips", tenant="t")
    assert merge_by_key(found) == {1: "x", 3: "z"}
    for kernels in (lips[1:2], (lips[1], lips[3])):
        with pytest.raises(KernelAwayError):
            await models_of(*kernels).ask_each("lips", tenant="t")
    refuses = Kernel("e", SyscallError(Errno.EINVAL, "no"))
    with pytest.raises(SyscallError, match="no"):
        await models_of(lips[0], refuses).ask_each("lips", tenant="t")


async def test_kernel_that_hangs_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("symphony_runtime.gateway.links.models._ANSWER_SECONDS", 0.05)
    hangs = Kernel("b", None)
    assert await models_of(hangs, Kernel("a", {1: "x"})).ask_each("lips", tenant="t") == [{1: "x"}]
    with pytest.raises(KernelAwayError, match="no answer"):
        await models_of(hangs, hangs).ask_each("lips", tenant="t")


async def test_waiting_tokens_are_of_all_kernels() -> None:
    first = {"tokens": 10, "seconds": 1.5, "tenants": {"t": [5, 2.0], "u": [1, 1.0]}}
    second = {"tokens": 1, "seconds": 0.5, "tenants": {"t": [7, 2.0]}}
    assert await models_of(Kernel("a", first)).waiting() is first
    both = await models_of(Kernel("a", first), Kernel("b", second)).waiting()
    assert (both["tokens"], both["seconds"]) == (11, 2.0)
    assert both["tenants"] == {"t": (12, 2.0), "u": (1, 1.0)}
