"""The watermark example's detector, written again for many texts at once, and its quality check.

    python -m benchmarks.watermark [--texts 1000] [--tokens 200] [--secrets 20]

A server on the embedded tiny model runs `examples/watermark`, which writes texts with the mark and
without. All are looked at by the program, and by the detector here, which shares nothing with it
but the description: they must count the same. Told are the marked texts that were detected at
p < 0.001, and the unmarked ones that raised a false alarm, with the program's secret and others.
"""

import argparse
import asyncio
import json
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from symphony import message_bytes
from symphony_kernel import tiny_model
from symphony_runtime.cli.projects import build
from tokenizers import Tokenizer

from tests.support.server.server import REPOSITORY, RunningServer, running_server

UInt64 = npt.NDArray[np.uint64]

LEVEL = 0.001
WIDTH = 2  # tokens before a place that choose its green list
PROMPTS = (
    "class Stack:\n    def __init__(self",
    "import os\n\ndef read_lines(path):\n",
    "# Test the parser.\nclass ParserTest(unittest.TestCase):\n",
    "def main(",
    '"""Helpers for files."""\n\nimport sys\n',
    "    for name in names:\n",
    "class Server(Thread):\n",
    "try:\n    import",
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """How many of a text's places were looked at, and how many hold a green token."""

    counted: int
    green: int

    @property
    def z(self) -> float:
        """By how many standard deviations there are more green tokens than by chance."""
        return (self.green - self.counted / 2) / math.sqrt(max(self.counted, 1) / 4)

    @property
    def alarms(self) -> bool:
        """Whether the text is taken for a marked one."""
        return self.z > 2 and self.p < LEVEL  # z is the cheaper one

    @property
    def p(self) -> float:
        """The chance of as many green tokens or more, exactly."""
        ways = sum(math.comb(self.counted, k) for k in range(self.green, self.counted + 1))
        return ways / (1 << self.counted)


class Detector:
    """Who knows the secret and has a text's tokens."""

    def __init__(self, secret: str) -> None:
        data = secret.encode()
        words = np.frombuffer(data + bytes(-len(data) % 8), "<u8")
        given = np.concatenate((np.array([len(data)], np.uint64), words))[None]
        self._key = (int(sip_hash((0, 0), given)[0]), int(sip_hash((0, 1), given)[0]))

    def look_at(self, tokens: list[int]) -> Evidence:
        """Count the green places of a text; the same tokens in a row count once."""
        if len(tokens) <= WIDTH:
            return Evidence(0, 0)
        windows = np.lib.stride_tricks.sliding_window_view(np.array(tokens, np.uint64), WIDTH + 1)
        grams = np.unique(windows, axis=0)
        lists = sip_hash(self._key, grams[:, :WIDTH])
        last = grams[:, WIDTH]
        coins = sip_hash(self._key, np.stack((lists, last // np.uint64(64)), axis=1))
        green = coins >> (last % np.uint64(64)) & np.uint64(1)
        return Evidence(len(grams), int(green.sum()))


def sip_hash(key: tuple[int, int], words: UInt64) -> UInt64:
    """Return SipHash-2-4 (Aumasson and Bernstein, 2012) of each row of [n, w] words."""
    constants = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    v = [np.full(len(words), key[i % 2] ^ c, np.uint64) for i, c in enumerate(constants)]
    length = np.full(len(words), (words.shape[1] * 8 & 0xFF) << 56, np.uint64)
    for word in (*words.T, length):
        v[3] ^= word
        _mix(v, 2)
        v[0] ^= word
    v[2] ^= np.uint64(0xFF)
    _mix(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _mix(v: list[UInt64], rounds: int) -> None:
    for _ in range(rounds):
        v[0] += v[1]
        v[2] += v[3]
        v[1] = _rotated(v[1], 13) ^ v[0]
        v[3] = _rotated(v[3], 16) ^ v[2]
        v[0] = _rotated(v[0], 32) + v[3]
        v[2] += v[1]
        v[3] = _rotated(v[3], 21) ^ v[0]
        v[1] = _rotated(v[1], 17) ^ v[2]
        v[2] = _rotated(v[2], 32)


def _rotated(x: UInt64, bits: int) -> UInt64:
    return x << np.uint64(bits) | x >> np.uint64(64 - bits)


def tokenizer() -> Tokenizer:
    """Return the tiny model's; a program's `tokenize` adds no special tokens, either."""
    weights = Path(tiny_model.__file__).parent / "weights"
    return Tokenizer.from_file(str(weights / "tokenizer.json"))


# --- The check -----------------------------------------------------------------------------------


async def write(server: RunningServer, secret: str, texts: int, tokens: int) -> list[Any]:
    """Return what the program says of so many marked and as many unmarked texts."""
    async with server.client() as client:
        wasm = build(REPOSITORY / "examples" / "watermark" / "rust").read_bytes()
        program = (await client.programs.upload(wasm, "watermark"))["id"]
        seeds = iter(range(texts))
        said: list[Any] = []

        async def work() -> None:
            for seed in seeds:
                prompt = PROMPTS[seed % len(PROMPTS)]
                given = {"prompt": prompt, "secret": secret, "deltas": [2, 0], "seed": seed,
                         "max_tokens": tokens}  # fmt: skip
                result = await client.run(program, input=given)
                if result["status"] != "exited" or result["exit_code"] != 0:
                    raise RuntimeError(f"seed {seed}: {result['status']}, {result['reason']}")
                said.extend(json.loads(message_bytes(message)) for message in result["messages"])
                print(f"\r{len(said) // 2} of {texts} texts", end="", flush=True, file=sys.stderr)

        await asyncio.gather(*(work() for _ in range(32)))
        print(file=sys.stderr)
        return said


def check(said: list[Any], secret: str, secrets: int) -> dict[str, Any]:
    """Return the figures, after the program's and this detector's were found to be the same."""
    bpe = tokenizer()
    detector = Detector(secret)
    marked: list[tuple[list[int], Evidence]] = []
    plain: list[tuple[list[int], Evidence]] = []
    for each in said:
        tokens = list(bpe.encode(each["text"], add_special_tokens=False).ids)
        found = detector.look_at(tokens)
        if (found.counted, found.green) != (each["counted"], each["green"]):
            raise RuntimeError(f"the program counts {each}, and the detector {found}")
        (marked if each["delta"] else plain).append((tokens, found))
    others = [Detector(f"{secret} {n}") for n in range(secrets)]
    # A text that ended early has little to tell: the promise is for 200 tokens.
    whole = [found for _, found in marked if found.counted >= 100]
    return {
        "marked": len(marked),
        "marked, 100 places or more": len(whole),
        "of these detected": sum(found.alarms for found in whole),
        "median z of these": float(np.median([found.z for found in whole])),
        "unmarked": len(plain),
        "false alarms": sum(found.alarms for _, found in plain),
        "false alarms with other secrets": [
            sum(other.look_at(tokens).alarms for tokens, _ in plain) for other in others
        ],
    }


def main() -> int:
    """Write, look, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--secrets", type=int, default=20)
    options = parser.parse_args()
    secret = "only we know this"
    with (
        tempfile.TemporaryDirectory(prefix="symphony-watermark-") as folder,
        running_server(Path(folder), executor="torch") as server,
    ):
        said = asyncio.run(write(server, secret, options.texts, options.tokens))
    print(json.dumps(check(said, secret, options.secrets), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
