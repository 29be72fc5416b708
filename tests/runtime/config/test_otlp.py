"""Where traces go: the option, and the environment that OpenTelemetry's users know."""

from pathlib import Path

import pytest
from symphony_runtime.config.otlp import check_otlp, check_protocol, traces_endpoint
from symphony_runtime.config.serve import OptionsError, read_options

_BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
_EXACT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    ("option", "environment", "endpoint"),
    [
        ("", {}, ""),
        ("http://a:4318", {}, "http://a:4318/v1/traces"),
        ("http://a:4318/", {_BASE: "http://b", _EXACT: "http://c"}, "http://a:4318/v1/traces"),
        ("", {_BASE: "http://b:4318/"}, "http://b:4318/v1/traces"),
        ("", {_BASE: "http://b", _EXACT: "http://c/x"}, "http://c/x"),
        ("", {_BASE: ""}, ""),
        ("", {_BASE: "http://b", "OTEL_TRACES_EXPORTER": "none"}, ""),
        ("", {_BASE: "http://b", "OTEL_TRACES_EXPORTER": "console, otlp"}, "http://b/v1/traces"),
        ("http://a", {"OTEL_TRACES_EXPORTER": "none"}, "http://a/v1/traces"),
        ("http://a", {"OTEL_SDK_DISABLED": "True"}, ""),
    ],
)
def test_endpoint_is_the_options_or_the_environments(
    option: str, environment: dict[str, str], endpoint: str
) -> None:
    assert traces_endpoint(option, environment) == endpoint


@pytest.mark.parametrize("url", ["collector:4318", "grpc://a:4317", "http://", "http://[", "/x"])
def test_option_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(OptionsError, match="otlp must be the URL of a collector"):
        read_options(None, {"otlp": url})


def test_option_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        check_otlp("http://user:hush@collector:4318")
    assert "hush" not in str(caught.value)


def test_option_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "symphony.toml").write_text('otlp = "https://collector.example"')
    assert read_options(tmp_path / "symphony.toml", {}).otlp == "https://collector.example"


def test_other_protocols_are_refused() -> None:
    exact, general = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    check_protocol({})
    check_protocol({exact: "http/protobuf", general: "grpc"})
    with pytest.raises(ValueError, match=f"{general} is grpc"):
        check_protocol({general: "grpc"})
