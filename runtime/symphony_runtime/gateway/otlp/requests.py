"""A span for each request of a route that needs a key.

The client's `traceparent` makes it a part of the client's trace. A malformed header is ignored.
"""

from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware
from multidict import CIMultiDictProxy
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from symphony_runtime.gateway.errors import Handler
from symphony_runtime.gateway.otlp.counts import TENANT, clean
from symphony_runtime.gateway.otlp.runs import held_runs

_PARENT, _STATE = "traceparent", "tracestate"
_PARENT_CHARACTERS_MAX = 128  # version 00 has 55
_STATE_CHARACTERS_MAX = 512
_TEXT_MAX = 256  # characters of an attribute that a client chooses
_PROPAGATOR = TraceContextTextMapPropagator()
TextOf = Callable[[web.Request], str | None]


def tracing_middleware(tracer: Tracer, route_of: TextOf, tenant_of: TextOf) -> Middleware:
    """Return the middleware that goes before all others.

    `route_of` returns the path of a route, None for a request that gets no span.
    """

    @web.middleware
    async def trace_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = route_of(request)
        if route is None:
            return await handler(request)
        span = tracer.start_span(
            f"{request.method} {route}",
            client_context(request.headers),
            SpanKind.SERVER,
            {
                "http.request.method": request.method,
                "http.route": route,
                "url.path": clean(request.path, _TEXT_MAX),
                "url.scheme": request.scheme,
                "network.protocol.version": f"{request.version.major}.{request.version.minor}",
                "user_agent.original": clean(request.headers.get("User-Agent", ""), _TEXT_MAX),
            },
        )
        if not span.is_recording():
            with use_span(span):  # so that its runs have no spans, either
                return await handler(request)
        try:
            with (
                held_runs(),
                use_span(span, record_exception=False, set_status_on_exception=False),
            ):
                response = await handler(request)
            span.set_attribute("http.response.status_code", response.status)
            if response.status >= 500:
                span.set_attribute("error.type", str(response.status))
                span.set_status(Status(StatusCode.ERROR))
            return response
        except BaseException as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            if tenant := tenant_of(request):
                span.set_attribute(TENANT, tenant)
            span.end()

    return trace_request


def client_context(headers: CIMultiDictProxy[str]) -> Context:
    """Return the context that a client's headers name; an empty one if they are not valid."""
    parents, states = headers.getall(_PARENT, []), headers.getall(_STATE, [])
    if len(parents) != 1 or len(parents[0]) > _PARENT_CHARACTERS_MAX:
        return Context()
    carrier: dict[str, Any] = {_PARENT: parents[0]}
    if states and sum(len(each) + 1 for each in states) <= _STATE_CHARACTERS_MAX:
        carrier[_STATE] = states
    return _PROPAGATOR.extract(carrier, Context())
