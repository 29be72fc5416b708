"""A short soak: every kind of run works, nothing stays behind, and growth would be seen."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from benchmarks import soak as module
from benchmarks.memory import fit, held_bytes, open_descriptors
from benchmarks.soak import KINDS, Soak, growth, left_over, soak_server
from tests.support.server.server import running_server


@pytest.mark.slow
def test_soak_every_kind_of_run_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAMPLE_SECONDS", 0.05)
    monkeypatch.setattr(module, "CLIENTS", 4)
    evenly = {name: (1, kind) for name, (_, kind) in KINDS.items()}
    monkeypatch.setattr(module, "KINDS", evenly)
    with running_server(tmp_path) as server:
        soak = Soak(server, 600, time.monotonic() + 120, model="")
        end = asyncio.run(soak_server(soak))
    assert soak.runs >= 600
    assert set(soak.done) == set(KINDS)
    assert left_over(end) == []
    assert left_over({**end, "kernel handles": 2.0}) == ["kernel handles is 2, not 0"]
    assert growth(soak.samples)["gateway runs kept"].slope == pytest.approx(1000, rel=0.2)


def test_soak_slope_has_a_confidence_interval() -> None:
    steady = fit([1, 2, 3, 4], [10.0, 12.0, 14.0, 16.0])
    assert steady.slope == pytest.approx(2.0)
    assert steady.error == pytest.approx(0.0, abs=1e-9)
    noise = fit([1, 2, 3, 4], [10.0, 14.0, 9.0, 13.0])
    assert noise.least < 0 < noise.slope


def test_soak_growth_is_measured_after_the_warm_up() -> None:
    samples = [{"runs": runs, "x": 1000.0 if runs >= 300 else runs} for runs in range(0, 1000, 100)]
    assert growth(samples)["x"].slope == pytest.approx(0.0)


def test_soak_process_is_measured() -> None:
    block = bytearray(os.urandom(8 << 20))
    assert held_bytes(os.getpid()) > len(block)
    assert (open_descriptors(os.getpid()) or 0) > 2
