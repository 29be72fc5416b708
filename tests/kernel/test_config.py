"""A kernel's configuration: what the supervisor may give, and how it is refused."""

import json
from typing import Any

import pytest
from symphony_kernel.config import Configuration, ConfigurationError, parse_configuration
from symphony_kernel.protocol.limits import DECODE_GAP_MS_DEFAULT, DELIVERY_MS_DEFAULT


def parse(**values: Any) -> Configuration:
    given = {"socket": "kernel.sock", "secrets": {"gateway": "00ff"}, **values}
    return parse_configuration(json.dumps(given))


def test_settings_are_the_operators_or_the_defaults() -> None:
    assert parse().max_decode_gap_ms == DECODE_GAP_MS_DEFAULT
    assert parse().delivery_ms == DELIVERY_MS_DEFAULT
    assert parse().tenant_weights == {}
    told = parse(max_decode_gap_ms=50, delivery_ms=0, tenant_weights={"a": 2, "b": 0.5})
    assert told.delivery_ms == 0
    assert (told.max_decode_gap_ms, told.tenant_weights) == (50, {"a": 2, "b": 0.5})
    assert parse(tensor_parallel=2, host_pool_tokens=1600).tensor_parallel == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        *(({"max_decode_gap_ms": bad}, "max_decode_gap_ms") for bad in (-1, "200", float("nan"))),
        *(({"delivery_ms": bad}, "delivery_ms") for bad in (-1, 1e6, "25")),
        *(({"tenant_weights": {"a": bad}}, "tenant_weights") for bad in (0, True, "2")),
        ({"tenant_weights": [2]}, "tenant_weights"),
        ({"tensor_parallel": 0}, "at least 1"),
        ({"tensor_parallel": "2"}, "at least 1"),
        ({"tensor_parallel": 2, "executor": "simulated"}, "must be 1 with a simulated"),
        ({"tensor_parallel": 2, "disk_pool_tokens": 1600}, "no disk tier"),
    ],
)
def test_wrong_setting_is_refused_by_name(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse(**wrong)
