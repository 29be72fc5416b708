"""The models of a server: each has a kernel, and workers of its own.

A run belongs to one model: its programs call that model's kernel, and run in its workers. What is a
tenant's and not a run's (limits, weights, names) every kernel gets.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, overload

from symphony_runtime.gateway.links.kernel_limits import KernelLimits
from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink

_ANSWER_SECONDS = 5.0  # of each kernel, where all are asked


class ServedModel:
    """A model: the link to its kernel, and its workers by name. `kernel_role` is the kernel's."""

    def __init__(
        self,
        kernel: KernelLink,
        limits: KernelLimits,
        workers: Sequence[str],
        name: str = "",
        kernel_role: str = "kernel",
    ) -> None:
        """`name` is the operator's; "": the kernel says it."""
        self.kernel, self.limits = kernel, limits
        self.workers = frozenset(workers)
        self.kernel_role = kernel_role
        self._name = name

    @property
    def name(self) -> str:
        """The name for clients; "" before the kernel was linked, where only it knows the name."""
        return self._name or str(self.kernel.about.get("model", {}).get("name", ""))


class Models(Sequence[ServedModel]):
    """All models, the default first."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = list(models)

    @overload
    def __getitem__(self, index: int) -> ServedModel: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ServedModel]: ...
    def __getitem__(self, index: int | slice) -> ServedModel | Sequence[ServedModel]:
        return self._models[index]

    def __len__(self) -> int:
        return len(self._models)

    @property
    def default(self) -> ServedModel:
        return self._models[0]

    @property
    def named(self) -> bool:
        """Whether all names are known: one that a kernel says is not before its first link."""
        return all(model.name for model in self._models)

    def find(self, name: str) -> ServedModel | None:
        return next((model for model in self._models if model.name == name), None)

    def of_worker(self, worker: str) -> ServedModel:
        """Return the model of a worker by its name."""
        if len(self._models) > 1:
            for model in self._models:
                if worker in model.workers:
                    return model
        return self._models[0]

    async def ask_each(self, what: str, **args: Any) -> list[Any]:
        """Return the answer of each kernel; those that are away are left out.

        Raises KernelAwayError: none answers; SyscallError: an errno.
        """
        if len(self._models) == 1:
            return [await self._models[0].kernel.ask(what, **args)]
        # One that hangs must not hold up what is asked of the others.
        answers = await asyncio.gather(
            *(self._ask_in_time(model.kernel, what, args) for model in self._there()),
            return_exceptions=True,
        )
        failed = [each for each in answers if isinstance(each, BaseException)]
        for error in failed:
            if not isinstance(error, KernelAwayError):
                raise error
        found = [each for each in answers if not isinstance(each, BaseException)]
        if not found:
            raise failed[0] if failed else KernelAwayError("no kernel is ready")
        return found

    async def _ask_in_time(self, kernel: KernelLink, what: str, args: dict[str, Any]) -> Any:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await kernel.ask(what, **args)
        except TimeoutError:
            raise KernelAwayError(f"no answer within {_ANSWER_SECONDS} s") from None

    async def waiting(self) -> dict[str, Any]:
        """Return the waiting tokens of all kernels (`Scheduler.waiting`); raise as `ask_each`."""
        return _merge_waiting(await self.ask_each("waiting"))

    def _there(self) -> Iterator[ServedModel]:
        return (model for model in self._models if model.kernel.ready)


def _merge_waiting(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of kernels' answers to `waiting` (`Scheduler.waiting`)."""
    if len(answers) == 1:
        return answers[0]
    tenants: dict[str, tuple[int, float]] = {}
    for answer in answers:
        for tenant, (tokens, weight) in answer["tenants"].items():
            tenants[tenant] = (tokens + tenants.get(tenant, (0, 0.0))[0], weight)
    return {
        "tokens": sum(answer["tokens"] for answer in answers),
        "seconds": sum(answer["seconds"] for answer in answers),
        "tenants": tenants,
    }


def merge_by_key(answers: list[dict[Any, Any]]) -> dict[Any, Any]:
    """Return one map of kernels' answers, whose keys differ."""
    return {key: value for answer in answers for key, value in answer.items()}
