"""Tracing is off by default, and says what it lacks."""

import contextlib
import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.config import ConfigError
from symphony_runtime.gateway.otlp.start import open_tracing

from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by

_OURS = [f"symphony_runtime.gateway.otlp.{name}" for name in ("tracing", "pipeline")]


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _OURS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in (
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "opentelemetry.sdk.trace",
    ):
        monkeypatch.setitem(sys.modules, name, None)  # it cannot be imported


@run_by(with_system, "tmp_path")
async def test_tracing_is_off_by_default(system: SystemRig, _: AsyncClient) -> None:
    assert system.gateway.services.runs.tracing is None


@run_by(with_system, "tmp_path")
async def test_option_without_the_packages_is_refused_in_words(
    system: SystemRig, _: AsyncClient, *, without_packages: None
) -> None:
    config = replace(system.config, otlp="http://127.0.0.1:4318")
    with pytest.raises(ConfigError, match=r"pip install 'symphony-lip\[otlp\]'"):
        await open_tracing(config, "1", contextlib.AsyncExitStack())


async def test_environment_without_the_packages_is_a_warning(
    tmp_path: Path,
    without_packages: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may be meant for other services of the machine."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    async with SystemRig(tmp_path) as system:
        assert system.gateway.services.runs.tracing is None
        (record,) = [each for each in caplog.records if "no traces" in each.message]
        assert record.levelno == logging.WARNING
        assert "symphony-lip[otlp]" in record.message
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        async with contextlib.AsyncExitStack() as stack:
            assert await open_tracing(system.config, "1", stack) is None
        assert "OTEL_EXPORTER_OTLP_PROTOCOL is grpc" in caplog.text
