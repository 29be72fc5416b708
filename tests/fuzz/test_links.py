"""A short, seeded part of the fuzzer's cases of links, and that they find what they look for."""

from random import Random
from typing import Any

import pytest
from symphony_kernel.protocol import messages as m
from symphony_runtime.gateway.runs.worker_requests import WorkerRequests

from tests.fuzz import links


def test_link_cases_find_nothing() -> None:
    case = links.Case(links.make(Random("suite/1")).frames[:60])
    sent, wrong = links.play(case)
    assert wrong == [], str(case)
    assert sent == len(case.frames)


def test_link_case_with_an_exception_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(requests: WorkerRequests, worker: Any, message: Any) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(WorkerRequests, "worker_message", fails)
    _, wrong = links.play(links.Case(([m.Unask.KIND, 1],)))
    assert wrong
    assert "a mistake of ours" in wrong[0]
