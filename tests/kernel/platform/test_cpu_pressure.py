"""Whether processors are short, by what a system says of a thread."""

from pathlib import Path

from symphony_kernel.platform.cpu_pressure import CpuPressure


def test_they_are_while_a_thread_waits_for_one(tmp_path: Path) -> None:
    source = tmp_path / "schedstat"
    source.write_text("0 0 0\n")
    crowding = CpuPressure(source)
    ran = waited = 0
    for now, (runs, waits, short) in enumerate([
        (50_000_000, 1_000_000, False),  # nanoseconds
        (50_000_000, 40_000_000, True),
        (1_000, 0, True),  # too little to say anything
        (3_000_000, 100_000, False),
    ]):  # fmt: skip
        ran, waited = ran + runs, waited + waits
        source.write_text(f"{ran} {waited} 7\n")
        assert crowding.short(float(now)) is short
        assert crowding.short(now + 0.001) is short
    crowding.close()


def test_where_nobody_tells_they_are(tmp_path: Path) -> None:
    assert CpuPressure(tmp_path / "nothing").short(1.0)
    (tmp_path / "empty").write_text("")
    empty = CpuPressure(tmp_path / "empty")
    assert empty.short(1.0)
    empty.close()


def test_of_a_thread_that_lives_it_is_told() -> None:
    crowding = CpuPressure()
    assert crowding.short(1.0) in (True, False)
    crowding.close()
    crowding.close()
