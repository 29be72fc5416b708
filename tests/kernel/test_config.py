"""A kernel's configuration: what the supervisor may give, and how it is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from symphony_kernel.config import (
    Configuration,
    ConfigurationError,
    make_executor,
    parse_configuration,
)
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.limits import DECODE_GAP_MS_DEFAULT, DELIVERY_MS_DEFAULT

from benchmarks.checkpoints import SHAPES, make_checkpoint


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


@pytest.mark.parametrize(
    ("emulated", "asked", "expected"),
    [
        (True, "auto", "float32"),
        (True, "bf16", "bfloat16"),
        (False, "auto", "bfloat16"),
        (False, "fp32", "float32"),
    ],
)
async def test_auto_dtype_is_float32_where_products_of_bf16_are_emulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulated: bool, asked: str, expected: str
) -> None:
    monkeypatch.setattr("symphony_kernel.executor.models.assets.AUTO_FLOAT32_BYTES_MAX", 1000)
    monkeypatch.setattr("symphony_kernel.config.emulates_bf16", lambda: emulated)
    model = str(make_checkpoint(tmp_path / "model", SHAPES["small"], "bf16"))
    given = parse(model=model, dtype=asked, device="cpu", threads=1, pool_bytes=1 << 24)
    executor, assets = make_executor(given, RealClock(), lambda _: None)
    try:
        assert (executor.model.dtype, assets.model.dtype) == (expected, expected)
    finally:
        await executor.close()
