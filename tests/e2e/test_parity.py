"""What the server generates is what transformers generates from the same checkpoint, in fp32.

Token by token, alone and with 32 other runs in flight; and the logits within 1e-4 relative. The
guests are bare WebAssembly, so that nothing stands between the calls and the comparison.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from symphony import AsyncClient, message_bytes
from symphony.client.views import RunResult
from symphony_kernel import tiny_model
from transformers import GenerationConfig
from wasmtime import wat2wasm

from benchmarks.checkpoints import make_checkpoint
from tests.support.executor.peer import Peer, one_thread
from tests.support.server.server import RunningServer, running_server, wait_for_end
from tests.support.worker.parity_guests import greedy, logits

TOKENS = 24
OTHERS = 32
PROMPT = "import os\n\n\ndef read_lines(path):\n    "


@dataclass
class Pair:
    """A server, and transformers on the same checkpoint."""

    server: RunningServer
    peer: Peer

    def generate(self, text: str) -> list[int]:
        prompt = torch.tensor([self.peer.prompt(text)])
        with torch.inference_mode():
            # A configuration of its own: the model's would end at its eos.
            greedy_loop = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
            out = self.peer.model.generate(prompt, generation_config=greedy_loop)
        return list(out[0, prompt.shape[1] :].tolist())

    def assert_greedy(self, text: str, generated: list[int]) -> None:
        """Each token is the argmax of transformers' distribution after the ones before it."""
        prompt = self.peer.prompt(text)
        chosen = self.peer.logits([*prompt, *generated[:-1]])[len(prompt) - 1 :].argmax(-1)
        assert chosen.tolist() == generated


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def pair(directory: Path, data_dir: Path, *options: str) -> Iterator[Pair]:
    arguments = ("--dtype", "fp32", "--pool-bytes", str(512 << 20), *options)
    with running_server(data_dir, *arguments, executor="torch") as server:
        yield Pair(server, Peer.load(directory))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from pair(tiny_model.path(), tmp_path_factory.mktemp("tiny"), "--model", "tiny")


@pytest.fixture(scope="module")
def random_135m(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = make_checkpoint(tmp_path_factory.mktemp("135m") / "model", dtype="fp32")
    data_dir = tmp_path_factory.mktemp("server-135m")
    yield from pair(directory, data_dir, "--model", str(directory))


def output(result: RunResult) -> bytes:
    assert (result["status"], result["exit_code"]) == ("exited", 0), result
    return b"".join(map(message_bytes, result["messages"]))


async def decode(client: AsyncClient, texts: list[str]) -> list[list[int]]:
    program = (await client.programs.upload(wat2wasm(greedy(TOKENS, waits=True)), name="greedy"))[
        "id"
    ]
    runs = [await client.start(program, input=text) for text in texts]
    await asyncio.gather(*(client.runs.send(each, b"go") for each in runs))
    sent = [output(await wait_for_end(client, each)) for each in runs]
    return [np.frombuffer(each, "<u4").tolist() for each in sent]


async def check_tokens(models: Pair) -> None:
    async with models.server.client() as client:
        [alone] = await decode(client, [PROMPT])
        assert alone == models.generate(PROMPT)

        # The others differ in length, so that prefills and decodes of all ages share steps.
        others = [f"class Case{i}:\n" + "    x = 1\n" * (i % 7) for i in range(OTHERS)]
        before = await models.server.counters()
        crowd = await decode(client, [PROMPT, *others])
        after = await models.server.counters()
        assert crowd[0] == alone
        for text, tokens in zip(others, crowd[1:], strict=True):
            models.assert_greedy(text, tokens)
        rows, steps = (after[k] - before[k] for k in ("decode_rows", "decode_steps"))
        assert rows > 4 * steps, "the runs were not in flight together"


async def check_logits(models: Pair, place: str) -> None:
    async with models.server.client() as client:
        program = await client.programs.upload(wat2wasm(logits(place)), name="logits")
        sent = output(await client.run(program["id"], input=PROMPT))
    expected = models.peer.logits(models.peer.prompt(PROMPT)).numpy()
    expected = expected if place == "all" else expected[-1:]
    found = np.frombuffer(sent, "<f4").reshape(expected.shape)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


async def test_tiny_tokens(tiny: Pair) -> None:
    await check_tokens(tiny)


async def test_tiny_logits(tiny: Pair) -> None:
    await check_logits(tiny, "all")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_random_135m_tokens(random_135m: Pair) -> None:
    await check_tokens(random_135m)


@pytest.mark.slow
async def test_random_135m_logits(random_135m: Pair) -> None:
    await check_logits(random_135m, "last")
