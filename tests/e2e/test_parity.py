"""What the server generates is what transformers generates from the same checkpoint, in fp32.

Token by token, alone and with 32 other runs in flight; and the logits within 1e-4 relative. The
guests are bare WebAssembly, so that nothing stands between the calls and the comparison.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from symphony_kernel import tiny_model
from symphony_runtime.client import Client, message_bytes
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from wasmtime import wat2wasm

from benchmarks.checkpoints import make_checkpoint
from tests.support.server.server import RunningServer, running_server
from tests.support.worker.parity_guests import greedy, logits

TOKENS = 24
OTHERS = 32
PROMPT = "import os\n\n\ndef read_lines(path):\n    "
UInt32 = npt.NDArray[np.uint32]


@dataclass
class Pair:
    """A server, and transformers on the same checkpoint."""

    server: RunningServer
    peer: PreTrainedModel
    tokenizer: Tokenizer

    def prompt(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def generate(self, text: str) -> list[int]:
        prompt = torch.tensor([self.prompt(text)])
        with torch.inference_mode():
            # A configuration of its own: the model's would end at its eos.
            greedy_loop = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
            out = self.peer.generate(prompt, generation_config=greedy_loop)
        return list(out[0, prompt.shape[1] :].tolist())

    def logits(self, tokens: list[int]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            values: npt.NDArray[np.float32] = self.peer(torch.tensor([tokens])).logits[0].numpy()
        return values

    def assert_greedy(self, text: str, generated: list[int]) -> None:
        """Each token is the argmax of transformers' distribution after the ones before it."""
        prompt = self.prompt(text)
        chosen = self.logits([*prompt, *generated[:-1]])[len(prompt) - 1 :].argmax(-1)
        assert chosen.tolist() == generated


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    # Two processes that compute with spinning threads on two cores slow each other down tenfold.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pair(directory: Path, data_dir: Path, *options: str) -> Iterator[Pair]:
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    arguments = ("--dtype", "fp32", "--pool-bytes", str(512 << 20), *options)
    with running_server(data_dir, *arguments, executor="torch") as server:
        yield Pair(server, peer, tokenizer)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from pair(tiny_model.path(), tmp_path_factory.mktemp("tiny"), "--model", "tiny")


@pytest.fixture(scope="module")
def random_135m(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = make_checkpoint(tmp_path_factory.mktemp("135m") / "model", dtype="fp32")
    data_dir = tmp_path_factory.mktemp("server-135m")
    yield from pair(directory, data_dir, "--model", str(directory))


async def run(client: Client, program: str, text: str) -> bytes:
    return output(await client.run(program, input=text))


def output(result: dict[str, Any]) -> bytes:
    assert (result["status"], result["exit_code"]) == ("exited", 0), result
    return b"".join(map(message_bytes, result["messages"]))


async def decode(client: Client, texts: list[str]) -> list[list[int]]:
    program = (await client.upload(wat2wasm(greedy(TOKENS, waits=True)), name="greedy"))["id"]
    runs = [await client.start(program, input=text) for text in texts]
    await asyncio.gather(*(client.send(each, b"go") for each in runs))
    found = []
    for each in runs:
        async for _ in client.events(each):
            pass  # until it has ended
        found.append(np.frombuffer(output(await client.result(each)), "<u4").tolist())
    return found


def check_tokens(models: Pair) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def check_logits(models: Pair, place: str) -> None:
    async def scenario() -> bytes:
        async with models.server.client() as client:
            program = await client.upload(wat2wasm(logits(place)), name="logits")
            return await run(client, program["id"], PROMPT)

    expected = models.logits(models.prompt(PROMPT))
    expected = expected if place == "all" else expected[-1:]
    found = np.frombuffer(asyncio.run(scenario()), "<f4").reshape(expected.shape)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_tiny_tokens(tiny: Pair) -> None:
    check_tokens(tiny)


def test_tiny_logits(tiny: Pair) -> None:
    check_logits(tiny, "all")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_random_135m_tokens(random_135m: Pair) -> None:
    check_tokens(random_135m)


@pytest.mark.slow
def test_random_135m_logits(random_135m: Pair) -> None:
    check_logits(random_135m, "last")
