"""Steps of rows that decode, one after another or chained to the step before."""

from collections.abc import Sequence

import numpy as np
from symphony_kernel.executor.base import Batch, Int32, Results, Row
from symphony_kernel.executor.chained_batch import BLANK, Chain
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.pred_options import PredOptions

from tests.support.executor.models import make_row, tokens_of

NEVER: frozenset[int] = frozenset()  # no token stops a row


def rows_at(
    start: int, tables: list[Int32], options: Sequence[PredOptions], tokens: list[int] | None = None
) -> list[Row]:
    """Return a row for each table, with the options in turn; without tokens, as in a chain."""
    rows = []
    for index, table in enumerate(tables):
        row = make_row([0], table, start, options[index % len(options)], seed=index)
        row.tokens = BLANK if tokens is None else np.array([tokens[index]], np.uint32)
        rows.append(row)
    return rows


def chained_batches(steps: int, tables: list[Int32], options: Sequence[PredOptions]) -> list[Batch]:
    """Return a batch of first tokens, and batches in which each row follows itself."""
    count = len(tables)
    chains = [Chain(list(range(count)), [NEVER] * count) for _ in range(1, steps)]
    later = [
        Batch(rows_at(start, tables, options), chain=chain) for start, chain in enumerate(chains, 1)
    ]
    return [Batch(rows_at(0, tables, options, [1] * count)), *later]


async def one_by_one(
    executor: TorchExecutor, steps: int, tables: list[Int32], options: Sequence[PredOptions]
) -> list[Results]:
    """Compute the same steps without chains; return each one's results."""
    found: list[Results] = []
    tokens = [1] * len(tables)
    for start in range(steps):
        found.append(await executor.run(Batch(rows_at(start, tables, options, tokens))))
        tokens = tokens_of(found[-1])
    return found
