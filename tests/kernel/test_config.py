"""What the supervisor may tell a kernel, and what it hears of a wrong word."""

import json
from typing import Any

import pytest
from symphony_kernel.config import Configuration, ConfigurationError, parse_configuration
from symphony_kernel.protocol.limits import DECODE_GAP_MS_DEFAULT, DELIVERY_MS_DEFAULT


def parse(**values: Any) -> Configuration:
    given = {"socket": "kernel.sock", "secrets": {"gateway": "00ff"}, **values}
    return parse_configuration(json.dumps(given))


def test_the_device_is_shared_as_the_operator_says() -> None:
    assert parse().max_decode_gap_ms == DECODE_GAP_MS_DEFAULT
    assert parse().delivery_ms == DELIVERY_MS_DEFAULT
    assert parse().tenant_weights == {}
    told = parse(max_decode_gap_ms=50, delivery_ms=0, tenant_weights={"a": 2, "b": 0.5})
    assert told.delivery_ms == 0
    assert (told.max_decode_gap_ms, told.tenant_weights) == (50, {"a": 2, "b": 0.5})


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_decode_gap_ms": -1}, {"max_decode_gap_ms": "200"},
        {"max_decode_gap_ms": float("nan")}, {"delivery_ms": -1}, {"delivery_ms": 1e6},
        {"delivery_ms": "25"}, {"tenant_weights": {"a": 0}}, {"tenant_weights": {"a": True}},
        {"tenant_weights": {"a": "2"}}, {"tenant_weights": [2]},
    ],
)  # fmt: skip
def test_a_share_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        parse(**wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tensor_parallel": 0}, "at least 1"),
        ({"tensor_parallel": "2"}, "at least 1"),
        ({"tensor_parallel": 2, "executor": "simulated"}, "must be 1 with a simulated"),
        ({"tensor_parallel": 2, "disk_pool_tokens": 1600}, "no disk tier"),
    ],
)
def test_several_devices_have_what_they_can_have(wrong: dict[str, Any], words: str) -> None:
    assert parse(tensor_parallel=2, host_pool_tokens=1600).tensor_parallel == 2
    with pytest.raises(ConfigurationError, match=words):
        parse(**wrong)
