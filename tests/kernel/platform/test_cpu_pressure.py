"""Whether processors are short, by the system's record of a thread."""

from pathlib import Path

from symphony_kernel.platform.cpu_pressure import CpuPressure


def test_processors_are_short_while_a_thread_waits(tmp_path: Path) -> None:
    source = tmp_path / "schedstat"
    source.write_text("0 0 0\n")
    pressure = CpuPressure(source)
    ran = waited = 0
    for now, (runs, waits, short) in enumerate([
        (50_000_000, 1_000_000, False),  # nanoseconds
        (50_000_000, 40_000_000, True),
        (1_000, 0, True),  # too little to decide
        (3_000_000, 100_000, False),
    ]):  # fmt: skip
        ran, waited = ran + runs, waited + waits
        source.write_text(f"{ran} {waited} 7\n")
        assert pressure.short(float(now)) is short
        assert pressure.short(now + 0.001) is short
    pressure.close()


def test_processors_without_a_record_count_as_short(tmp_path: Path) -> None:
    assert CpuPressure(tmp_path / "nothing").short(1.0)
    (tmp_path / "empty").write_text("")
    empty = CpuPressure(tmp_path / "empty")
    assert empty.short(1.0)
    empty.close()


def test_processors_of_this_thread_have_a_record() -> None:
    pressure = CpuPressure()
    assert pressure.short(1.0) in (True, False)
    pressure.close()
    pressure.close()
