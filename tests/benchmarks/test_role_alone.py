"""The measurement of one role by itself: it drives the real one, with every frame answered."""

import pytest

from benchmarks import cold as cold_caches
from benchmarks import role_alone
from benchmarks.host_overhead import GUEST


@pytest.mark.parametrize(
    ("role", "cold", "what"),
    [
        ("kernel", False, "pred"),
        ("worker", False, "pred"),
        ("kernel", True, "pred"),
        ("kernel", True, "generate"),
        ("worker", True, "pred"),
    ],
)
def test_role_alone_takes_all_frames(
    role: str, cold: bool, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_alone, "WARM_TURNS", 8)
    monkeypatch.setattr(role_alone, "COLD_TURNS", 8)
    monkeypatch.setattr(cold_caches, "BYTES", 1 << 20)
    monkeypatch.setattr(role_alone, "ROUNDS", 2)
    monkeypatch.setattr(role_alone, "ROUND_PREDS", 1)
    monkeypatch.setattr(role_alone, "ENTRIES_MAX", 32)
    guest = GUEST.replace("i32.const 256", "i32.const 32")
    found = role_alone.measure(role, [1, 20], guest, cold, what)
    assert list(found) == [1, 20]
    assert all(microseconds > 0 for microseconds in found.values())
