"""The port where clients connect, with TLS if there is a certificate."""

import asyncio
import logging
from contextlib import AsyncExitStack

from aiohttp import web

from symphony_runtime.config.transport import Certificate, TransportError, check_transport
from symphony_runtime.gateway.config import ConfigError, GatewayConfig
from symphony_runtime.gateway.connections.connections import ConnectionGate, Connections

_log = logging.getLogger(__name__)
_BACKLOG = 4_096  # connections that arrive at once
_RENEW_SECONDS = 60.0  # between checks of the certificate's files


def check_host(config: GatewayConfig) -> None:
    """Check that the host may be served as it is configured.

    Raises:
        ConfigError: it may not.
    """
    try:
        check_transport(
            config.host, config.tls_cert, config.tls_key, behind_proxy=config.behind_proxy
        )
    except TransportError as error:
        raise ConfigError(str(error)) from error


async def listen(
    runner: web.AppRunner, config: GatewayConfig, connections: Connections, stack: AsyncExitStack
) -> int:
    """Listen until the stack ends; return the port.

    Raises:
        ConfigError: the address is taken or not ours, or the certificate is invalid.
    """
    certificate = _certificate(config)
    context = certificate.context if certificate is not None else None
    site = ConnectionGate(
        runner, connections, config.host, config.port, backlog=_BACKLOG, ssl_context=context
    )
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {error}") from error
    if certificate is not None:
        stack.callback(asyncio.create_task(_renew_certificate(certificate)).cancel)
    (_, port, *_) = runner.addresses[0]
    return int(port)


def _certificate(config: GatewayConfig) -> Certificate | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    try:
        return Certificate(config.tls_cert, config.tls_key)
    except TransportError as error:
        raise ConfigError(str(error)) from error


async def _renew_certificate(certificate: Certificate) -> None:
    while True:
        await asyncio.sleep(_RENEW_SECONDS)
        if await asyncio.to_thread(certificate.renew):
            _log.warning("the certificate was renewed")
