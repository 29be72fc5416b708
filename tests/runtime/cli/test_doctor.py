"""What `symphony doctor` says of the disk."""

from pathlib import Path

from symphony_runtime.cli.doctor import _data_dir

from tests.support.faults.small_disk import fill, small_disk

MIB = 1 << 20


def test_doctor_on_a_full_disk_says_what_is_free_and_what_holds_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        folder = disk / "data"
        told = _data_dir(folder)  # which a server has yet to make
        assert (told.good, told.needed) == (True, True)
        assert f"{folder}, 64 MiB free; 16 MiB are reserved" in told.words
        (folder / "programs").mkdir(parents=True)
        (folder / "programs" / "one").write_bytes(bytes(3 * MIB))
        fill(disk, leave=MIB)
        told = _data_dir(folder)
        assert not told.good
        assert f"{folder}, 1 MiB free" in told.words
        assert "programs: 3 MiB" in told.words
