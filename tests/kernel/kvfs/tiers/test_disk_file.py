"""The disk tier's file: what is written to a slot is read from it."""

from pathlib import Path

import numpy as np
import pytest
from symphony_kernel.kvfs.tiers.disk_file import SpillFile

from tests.support.faults.small_disk import fill, free_bytes, small_disk

MIB = 1 << 20
SLOT_BYTES = 512


async def test_slot_keeps_what_was_written(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path, 16, SLOT_BYTES)
    written = np.random.default_rng(3).integers(0, 256, (4, SLOT_BYTES)).astype(np.uint8)
    read = np.zeros_like(written)
    slots = (9, 0, 15, 3)
    await spill.write([(slot, row.data) for slot, row in zip(slots, written, strict=True)])
    await spill.write([(0, written[3].data)])
    await spill.read([(slot, row.data) for slot, row in zip(slots, read, strict=True)])
    assert (read == written[[0, 3, 2, 3]]).all()
    spill.close()


async def test_slot_that_was_never_written_cannot_be_read(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path, 4, SLOT_BYTES)
    with pytest.raises(OSError, match="ends early"):
        await spill.read([(2, np.zeros(SLOT_BYTES, np.uint8).data)])
    with pytest.raises(AssertionError, match="whole slots"):
        await spill.write([(2, np.zeros(5, np.uint8).data)])
    spill.close()


def test_spill_file_leaves_the_disk_reserve_and_fair_shares(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16 * MIB) as folder:
        spill = SpillFile(folder, 1_024, MIB // 16, reserve_bytes=2 * MIB)
        assert spill.has_room()
        room = (free_bytes(folder) - MIB) // (MIB // 16)  # half of the reserve is free space
        assert spill.is_fair(room - 2)
        assert not spill.is_fair(room - 1), "it would leave less"
        fill(folder, leave=2 * MIB)
        assert not spill.has_room()
        assert spill.is_fair(2 * MIB // (MIB // 16) - 1), "as many as the reserve has"
        spill.close()


def test_spill_file_without_its_directory_has_no_room(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    spill = SpillFile(tmp_path / "data", 4, SLOT_BYTES, reserve_bytes=1)
    (tmp_path / "data").rmdir()
    assert not spill.has_room()
    assert not spill.is_fair(0)
    spill.close()
