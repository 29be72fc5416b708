"""The boot: which kernel starts from which journal, and what is logged."""

import secrets
from pathlib import Path

import pytest
from symphony_kernel.__main__ import revive
from symphony_kernel.config import Configuration
from symphony_kernel.executor.simulated import SimulatedExecutor
from symphony_kernel.journal.recorder import Recorder
from symphony_kernel.kernel import Kernel, describe
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.sessions import SessionState

from tests.support.kernel.rig import ASSETS


def configuration(folder: Path, **given: object) -> Configuration:
    kernel = {"socket": Path("none"), "secrets": {"gateway": b"s"}, "journal": folder, **given}
    return Configuration(**kernel)  # type: ignore[arg-type]


def make() -> Kernel:
    clock = RealClock()
    return Kernel(SimulatedExecutor(clock, 64), describe(ASSETS), clock)


def live(settings: Configuration) -> int:
    """Boot, register an instance, and die; return how many there were before."""
    kernel = revive(settings, make)
    before: int = kernel.statistics()["instances"]
    port = kernel.port("w")
    if port is None:
        kernel.attach_session(kernel.make_session(SessionState(b"w" * 16), "w"), "w")
        kernel.attach_session(kernel.make_session(SessionState(b"g" * 16), "gateway"), "gateway")
    gateway = kernel.port("gateway")
    assert gateway is not None
    gateway.on_frame(m.encode(m.Register(1, secrets.randbits(40), "t", "w", 0, 0, {})))
    assert kernel.statistics()["instances"] == before + 1
    if kernel.hooks is not None:
        kernel.hooks.abandon()
    return before


async def test_kernel_continues_from_the_journal_before(tmp_path: Path) -> None:
    assert [live(configuration(tmp_path)) for _ in range(4)] == [0, 1, 2, 3]


async def test_kernel_without_a_journal_starts_empty() -> None:
    settings = configuration(Path("none"), journal=None)
    assert [live(settings) for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("other", [{"dtype": "bf16"}, {"model": "other"}, {"quantize": "int8"}])
async def test_journal_of_other_settings_is_set_aside_and_logged(
    tmp_path: Path, other: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert live(configuration(tmp_path)) == 0
    assert live(configuration(tmp_path, **other)) == 0
    assert "SET ASIDE" in caplog.text
    assert live(configuration(tmp_path, **other)) == 1


async def test_journal_that_cannot_be_replayed_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert live(configuration(tmp_path)) == 0
    kernel = revive(configuration(tmp_path), make)
    assert isinstance(kernel.hooks, Recorder)
    kernel.hooks.done(77, 0)
    kernel.hooks.commit()
    kernel.hooks.abandon()
    assert live(configuration(tmp_path)) == 0
    assert "cannot recover from its journal" in caplog.text
    assert (tmp_path / "aside").exists()
    assert live(configuration(tmp_path)) == 1


async def test_unusable_journal_directory_is_logged_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no directory")
    assert [live(configuration(tmp_path / "file")) for _ in range(2)] == [0, 0]
    assert "THERE IS NO JOURNAL" in caplog.text
