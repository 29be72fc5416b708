"""A kernel in real time whose model is random and speaks in the tiny model's tokens."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np
from symphony_kernel import tiny_model
from symphony_kernel.executor.base import Executor
from symphony_kernel.executor.models.assets import ModelAssets, load_assets
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor, simulated_model
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.messages import Op
from tokenizers import Tokenizer

from tests.support.kernel.rig import A, KernelRig, Worker, ids, options, poisoned, start, tokens

JSON_SCHEMA, REGEX, LARK = 0, 1, 2
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,12}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "home": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 10}]},
    },
    "required": ["name", "age", "home"],
    "additionalProperties": False,
}
EOS = 0
PROMPT = tokens(*range(1, 40))
LENGTH = len(PROMPT) // 4

Test = Callable[[KernelRig], Coroutine[Any, Any, None]]


@lru_cache(maxsize=1)
def assets() -> ModelAssets:
    """The tiny model's, but for the model itself."""
    found = load_assets(tiny_model.path())
    assert found.model.eos == (EOS,)
    return ModelAssets(simulated_model(), found.tokenizer_json, None, {})


@lru_cache(maxsize=1)
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_str(assets().tokenizer_json.decode())


def text_of(ids: list[int]) -> str:
    """Return what tokens say; an end of text says nothing."""
    found: str = _tokenizer().decode(ids, skip_special_tokens=True)
    return found


def ids_of(text: str) -> list[int]:
    found: list[int] = _tokenizer().encode(text, add_special_tokens=False).ids
    return found


def schema(value: Any) -> bytes:
    return json.dumps(value).encode()


def sampled(seed: int) -> dict[str, Any]:
    """Return the option `get` at temperature 1."""
    return {"sample": {"temperature": 1.0, "seed": seed}}


async def constraint(worker: Worker, kind: int, text: bytes, instance: int = 1) -> int:
    result = await worker.call(instance, Op.CONSTRAINT, kind, text)
    assert isinstance(result, int), msgpack.unpackb(result)
    assert result > 0, result
    return result


async def refused(worker: Worker, kind: int, text: bytes, instance: int = 1) -> tuple[int, str]:
    """Return the errno and the words of a constraint that cannot be compiled."""
    result = await worker.call(instance, Op.CONSTRAINT, kind, text)
    assert isinstance(result, bytes), result
    errno, words = msgpack.unpackb(result)
    return errno, words


async def generate(worker: Worker, instance: int = 1, handle: int = A, **given: Any) -> list[int]:
    made = await worker.complete(instance, handle, PROMPT, **{"max": 400, **given})
    return made.ids


@contextlib.asynccontextmanager
async def kernel_with_text(
    executor: Executor | None = None, options: KernelOptions | None = None, fixed_us: float = 200.0
) -> AsyncIterator[KernelRig]:
    """A kernel with a worker and a gateway."""
    clock = RealClock()
    device = executor or SimulatedExecutor(
        clock, 512, assets().model, CostModel(fixed_us=fixed_us), hashed=True
    )
    kernel = Kernel(device, describe(assets()), clock, poisoned(options))
    running = asyncio.create_task(kernel.run())
    try:
        yield KernelRig(kernel)
    finally:
        await kernel.close()
        await running


__all__ = ["EOS", "PROMPT", "A", "KernelRig", "Worker", "np", "start"]


def with_text(test: Test) -> None:
    async def main() -> None:
        async with kernel_with_text() as rig:
            await start(rig)
            await test(rig)
            await rig.gateway.check_integrity()

    asyncio.run(main())


async def generated(
    rig: KernelRig, seed: int, handle: int, file: int = A, **given: Any
) -> list[int]:
    under = {"max": 300, "constraint": handle, "get": sampled(seed)}
    return await generate(rig.worker, 1, file, **{**under, **given})


async def preds(
    worker: Worker, file: int, first: bytes, count: int, seed: int = 5, **given: Any
) -> list[int]:
    """Return what a loop of preds gives, until the end of its text."""
    packed = options(get=sampled(seed), **given)
    found: list[int] = []
    while len(found) < count and EOS not in found:
        (token,) = ids(await worker.pred(1, file, first, packed))
        found.append(token)
        first = tokens(token)
    return found
