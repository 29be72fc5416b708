"""The disk tier's file: what is written to a slot is read from it."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from symphony_kernel.kvfs.disk import Spill

SLOT_BYTES = 512


def test_slots_keep_what_was_written(tmp_path: Path) -> None:
    async def main() -> None:
        spill = Spill(tmp_path, 16, SLOT_BYTES)
        written = np.random.default_rng(3).integers(0, 256, (4, SLOT_BYTES)).astype(np.uint8)
        read = np.zeros_like(written)
        slots = (9, 0, 15, 3)
        await spill.write([(slot, row.data) for slot, row in zip(slots, written, strict=True)])
        await spill.write([(0, written[3].data)])
        await spill.read([(slot, row.data) for slot, row in zip(slots, read, strict=True)])
        assert (read == written[[0, 3, 2, 3]]).all()
        spill.close()

    asyncio.run(main())


def test_what_was_never_written_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        spill = Spill(tmp_path, 4, SLOT_BYTES)
        with pytest.raises(OSError, match="ends early"):
            await spill.read([(2, np.zeros(SLOT_BYTES, np.uint8).data)])
        with pytest.raises(AssertionError, match="whole slots"):
            await spill.write([(2, np.zeros(5, np.uint8).data)])
        spill.close()

    asyncio.run(main())
