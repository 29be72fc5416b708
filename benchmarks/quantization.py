"""What weights in 8 and 4 bits cost in accuracy: the tiny model on text that it never saw.

    python -m benchmarks.quantization [--rows 40]

The held-out files of the tiny model (its README says which), cut into rows of 512 tokens, in fp32
and bf16, with each `--quantize`. Needs transformers, as the corpus's own module does.
"""

import argparse
import asyncio
import math
import sysconfig
from pathlib import Path

import numpy as np
import numpy.typing as npt
from symphony_kernel import tiny_model
from symphony_kernel.executor.base import Batch, Row
from symphony_kernel.executor.models.quantization import Quantization
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.pred_options import Get, PredOptions
from tokenizers import Tokenizer

from tools.train_tiny_model import read_corpus

_ROW = 512
_LOGITS = PredOptions(at="all", get=Get.LOGITS)
_WEIGHTS = Path(tiny_model.__file__).parent / "weights"
Float32 = npt.NDArray[np.float32]
UInt32 = npt.NDArray[np.uint32]


def held_out_rows(count: int) -> UInt32:
    """Return [count, _ROW] tokens of the held-out files."""
    tokenizer = Tokenizer.from_file(str(_WEIGHTS / "tokenizer.json"))
    sources = read_corpus(Path(sysconfig.get_paths()["stdlib"]))
    ids = [i for s in sources if s.held_out for i in tokenizer.encode(s.text).ids]
    return np.array(ids[: len(ids) // _ROW * _ROW], np.uint32).reshape(-1, _ROW)[:count]


async def logits(executor: TorchExecutor, tokens: UInt32) -> Float32:
    """Return [n, vocab] logits of a text of n tokens."""
    n = len(tokens)
    places = np.arange(n, dtype=np.int32)
    pages = np.arange(-(-n // PAGE_TOKENS), dtype=np.int32)
    [found] = await executor.run(Batch([Row(tokens, places, 0, pages, places, _LOGITS)]))
    assert isinstance(found, bytes), found
    return np.frombuffer(found, np.float32).reshape(n, -1)


def loss(found: Float32, tokens: UInt32) -> float:
    """Return the mean nats of each token but the first."""
    scores = found[:-1].astype(np.float64)
    top = scores.max(1)
    whole = top + np.log(np.exp(scores - top[:, None]).sum(1))
    return float((whole - scores[np.arange(len(tokens) - 1), tokens[1:]]).mean())


async def _measure(rows: UInt32) -> None:
    exact: list[Float32] = []
    print(f"{'':>12} {'nats/token':>11} {'perplexity':>11} {'largest logit off':>18} {'mean':>8}")
    for dtype in ("fp32", "bf16"):
        for quantize in Quantization:
            executor = TorchExecutor.load(
                _WEIGHTS, dtype=dtype, quantize=quantize, device="cpu", pool_bytes=1 << 24
            )
            found = [await logits(executor, row) for row in rows]
            await executor.close()
            exact = exact or found
            nats = float(np.mean([loss(f, r) for f, r in zip(found, rows, strict=True)]))
            off = [np.abs(f - e) for f, e in zip(found, exact, strict=True)]
            largest, mean = max(float(o.max()) for o in off), np.mean([o.mean() for o in off])
            name = dtype if quantize is Quantization.NONE else f"{dtype}, {quantize}"
            print(f"{name:>12} {nats:>11.4f} {math.exp(nats):>11.4f} {largest:>18.3f} {mean:>8.4f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=40, help="of 512 tokens")
    asyncio.run(_measure(held_out_rows(parser.parse_args().rows)))


if __name__ == "__main__":
    main()
