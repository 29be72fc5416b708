"""Where traces are sent: the option `otlp`, or OpenTelemetry's environment.

The supervisor asks, to know whether the gateway needs that environment, and the gateway does.
"""

from collections.abc import Mapping
from typing import Final

from yarl import URL

PREFIX: Final = "OTEL_"  # of the names that OpenTelemetry reads
_PATH: Final = "/v1/traces"
_PROTOCOL: Final = "http/protobuf"
_FOR_TRACES: Final = "OTEL_EXPORTER_OTLP_TRACES_"
_FOR_ALL: Final = "OTEL_EXPORTER_OTLP_"


def traces_endpoint(option: str, environment: Mapping[str, str]) -> str:
    """Return the URL that gets the traces; "": there is none, and tracing is off.

    The option takes precedence, except over OTEL_SDK_DISABLED.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    if option:
        return option.rstrip("/") + _PATH
    exporters = environment.get("OTEL_TRACES_EXPORTER") or "otlp"
    if "otlp" not in (each.strip() for each in exporters.split(",")):
        return ""
    if exact := environment.get(f"{_FOR_TRACES}ENDPOINT"):
        return exact
    base = environment.get(f"{_FOR_ALL}ENDPOINT")
    return base.rstrip("/") + _PATH if base else ""


def check_otlp(url: str) -> None:
    """Check the option.

    Raises ValueError: it is neither empty nor the URL of a server, or it has a password.
    """
    if not url:
        return
    try:
        parsed = URL(url)
        good = parsed.scheme in ("http", "https") and bool(parsed.host)
    except ValueError:
        good = False
    if not good:
        raise ValueError("otlp must be the URL of a collector: http://host:4318")
    if parsed.user is not None or parsed.password is not None:
        raise ValueError("otlp must have no password: set OTEL_EXPORTER_OTLP_HEADERS")


def check_protocol(environment: Mapping[str, str]) -> None:
    """Check that the environment asks for no protocol but ours; ValueError."""
    names = f"{_FOR_TRACES}PROTOCOL", f"{_FOR_ALL}PROTOCOL"
    for name in names:
        if wanted := environment.get(name):
            if wanted != _PROTOCOL:
                raise ValueError(f"{name} is {wanted}; traces are sent by {_PROTOCOL} only")
            return
