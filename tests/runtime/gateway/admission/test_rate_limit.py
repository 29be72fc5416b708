"""Requests a second: which of a tenant's requests are refused, and when they may be repeated."""

import pytest
from symphony_runtime.config.limits import Limits, parse_limits
from symphony_runtime.gateway.admission.rate_limit import RateLimiters, tokens_refused
from symphony_runtime.gateway.errors import Problem

from tests.runtime.gateway.admission.test_retry_estimates import Time


def rates(reached: list[tuple[str, str]], clock: Time, **limits: int) -> RateLimiters:
    note = lambda tenant, limit: reached.append((tenant, limit))  # noqa: E731
    return RateLimiters(Limits(parse_limits(limits)), note, clock)


def test_request_over_the_rate_is_refused_until_there_is_room() -> None:
    reached: list[tuple[str, str]] = []
    clock = Time()
    held = rates(reached, clock, requests_per_second=2)
    held.take_request("acme")
    held.take_request("acme")
    with pytest.raises(Problem) as refused:
        held.take_request("acme")
    assert held.headers("acme")["x-ratelimit-remaining-requests"] == "0"
    problem = refused.value
    assert (problem.status, problem.kind, problem.fields["limit"]) == (429, "too-many-requests", 2)
    assert problem.headers["Retry-After"] == "1"
    assert reached == [("acme", "requests_per_second")]
    held.take_request("others")
    clock.now += 0.5
    held.take_request("acme")
    with pytest.raises(Problem):
        held.take_request("acme")


def test_rate_headers_are_openais() -> None:
    clock = Time()
    held = rates([], clock, requests_per_second=10)
    assert held.headers("acme") == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "10",
        "x-ratelimit-reset-requests": "0ms",
    }
    held.take_request("acme")
    found = held.headers("acme", (600, 590, 0))
    assert found["x-ratelimit-remaining-requests"] == "9"
    assert found["x-ratelimit-reset-requests"] == "100ms"
    assert found["x-ratelimit-limit-tokens"] == "600"
    assert found["x-ratelimit-remaining-tokens"] == "590"
    assert found["x-ratelimit-reset-tokens"] == "1s"
    assert held.headers("acme", (600, 0, 0))["x-ratelimit-reset-tokens"] == "1m0s"


def test_refusal_for_tokens_says_when_there_are_some() -> None:
    problem = tokens_refused(600, 0, 2_300)
    assert (problem.status, problem.headers["Retry-After"]) == (429, "3")


def test_full_buckets_past_a_number_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Time()
    held = rates([], clock, requests_per_second=2)
    monkeypatch.setattr("symphony_runtime.gateway.admission.rate_limit._TENANTS_MAX", 8)
    for number in range(40):
        held.take_request(f"tenant-{number}")
        clock.now += 1.0
    assert len(held._buckets) <= 9
