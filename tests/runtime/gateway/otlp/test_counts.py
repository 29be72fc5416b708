"""Bounds of the spans that wait, and texts that can be sent."""

from types import SimpleNamespace
from typing import Any

import pytest
from symphony_runtime.gateway.otlp.counts import TENANT, SpanCounts, clean


def span(tenant: str | None) -> Any:
    return SimpleNamespace(attributes={TENANT: tenant} if tenant else None)


def test_tenant_fills_half_of_the_queue_at_most() -> None:
    counts = SpanCounts(10)
    assert [counts.admit(span("flood")) for _ in range(7)] == [True] * 5 + [False] * 2
    assert [counts.admit(span("b")) for _ in range(3)] == [True] * 3
    assert [counts.admit(span(None)) for _ in range(3)] == [True, True, False]
    assert (counts.waiting, counts.dropped) == (10, 3)
    counts.take([span("flood")] * 5 + [span("b")])
    assert counts.waiting == 4
    assert counts.admit(span("flood"))
    counts.drop_unmade()
    assert counts.dropped == 4


@pytest.mark.parametrize(
    ("text", "sent"),
    [("caf\udce9", "caf?"), ("\ud800\udc00", "??"), ("x" * 20, "x" * 8), ("é", "é")],
)
def test_text_is_cut_and_can_be_encoded(text: str, sent: str) -> None:
    assert clean(text, 8) == sent
