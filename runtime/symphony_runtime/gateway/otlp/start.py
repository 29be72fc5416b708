"""The start of tracing, if the operator wants it."""

import asyncio
import contextlib
import logging
import os
from typing import TYPE_CHECKING

from symphony_runtime.config.otlp import check_protocol, traces_endpoint
from symphony_runtime.gateway.config import ConfigError, GatewayConfig

if TYPE_CHECKING:
    from symphony_runtime.gateway.otlp.tracing import Tracing

_log = logging.getLogger(__name__)


async def open_tracing(
    config: GatewayConfig, version: str, stack: contextlib.AsyncExitStack
) -> "Tracing | None":
    """Return the tracing that the option or the environment asks for; None: it is off.

    The stack's end sends the last spans.

    Raises ConfigError: the option is set, and traces cannot be sent.
    """
    endpoint = traces_endpoint(config.otlp, os.environ)
    if not endpoint:
        return None
    try:
        check_protocol(os.environ)
        tracing = await asyncio.to_thread(_make, endpoint, version)
    except (ImportError, ValueError) as error:
        words = str(error)
        if isinstance(error, ImportError):
            words = f"traces need more packages ({error}): pip install 'symphony-lip[otlp]'"
        if config.otlp:
            raise ConfigError(words) from error
        _log.warning("no traces are sent to %s: %s", endpoint, words)
        return None
    stack.push_async_callback(tracing.close)
    return tracing


def _make(endpoint: str, version: str) -> "Tracing":
    from symphony_runtime.gateway.otlp.tracing import Tracing

    return Tracing(endpoint, version)
