"""The port where clients connect, with TLS if there is a certificate."""

import asyncio
import logging
from contextlib import AsyncExitStack

from aiohttp import web

from symphony_runtime.config.transport import Certificate, TransportError, check_transport
from symphony_runtime.gateway.config import ConfigError, GatewayConfig, refused_for
from symphony_runtime.gateway.connections.connections import Connections, open_port

_log = logging.getLogger(__name__)
_SHUTDOWN_SECONDS = 2.0  # for answers that are still being written
_RENEW_SECONDS = 60.0  # between checks of the certificate's files


def check_host(config: GatewayConfig) -> None:
    """Check that the host may be served as it is configured; ConfigError."""
    with refused_for(TransportError):
        check_transport(
            config.host, config.tls_cert, config.tls_key, behind_proxy=config.behind_proxy
        )


async def listen(
    app: web.Application, config: GatewayConfig, connections: Connections, stack: AsyncExitStack
) -> int:
    """Listen until the stack ends; return the port.

    Raises ConfigError: the address is taken or not ours, or the certificate is invalid.
    """
    runner = web.AppRunner(app, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    certificate = context = None
    if config.tls_cert is not None and config.tls_key is not None:
        with refused_for(TransportError):
            certificate = Certificate(config.tls_cert, config.tls_key)
        context = certificate.context
    assert runner.server is not None
    try:
        server = await open_port(runner.server, connections, config.host, config.port, context)
    except OSError as error:
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {error}") from error
    stack.callback(server.close)
    if certificate is not None:
        stack.callback(asyncio.create_task(_renew_certificate(certificate)).cancel)
    (_, port, *_) = server.sockets[0].getsockname()
    return int(port)


async def _renew_certificate(certificate: Certificate) -> None:
    while True:
        await asyncio.sleep(_RENEW_SECONDS)
        if await asyncio.to_thread(certificate.renew):
            _log.warning("the certificate was renewed")
