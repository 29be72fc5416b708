"""HTTP requests of programs, through their tenant's allow list.

    request -> a rule that covers its URL and method -> an address that the rule allows -> the
            answer; a redirect is a new request, from the beginning

Each tenant has its own connections under each rule: a connection of another rule or tenant never
serves a request.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, cast
from urllib.parse import urljoin

import aiohttp
import msgpack
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    HTTP_BODY_BYTES_MAX,
    HTTP_HEADER_BYTES_MAX,
    HTTP_HEADER_LINE_BYTES_MAX,
    HTTP_HEADER_LINES_MAX,
    HTTP_INFORMATIONAL_MAX,
    HTTP_MS_DEFAULT,
    HTTP_REDIRECTS_MAX,
    TENANT_HTTP_BYTES_MAX,
)
from yarl import URL

from symphony_runtime.abi.egress_requests import HttpRequest, parse_url
from symphony_runtime.config.egress import HttpRule
from symphony_runtime.gateway.admission.tenant_lock import TenantLocks
from symphony_runtime.gateway.egress.addresses import CheckedResolver, CheckedSockets, RefusedError
from symphony_runtime.gateway.egress.injection import Injected, Injector, without_secrets
from symphony_runtime.gateway.egress.resolver import ResolverThreads
from symphony_runtime.gateway.egress.vault import Secret

_AGENT = "symphony"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CREDENTIALS = frozenset({"authorization", "cookie"})  # sent to one origin only
_ABOUT_BODY = frozenset({"content-type", "content-encoding", "content-language"})
_SAFE = frozenset({"GET", "HEAD"})  # methods without effects
_IN_THREAD_BYTES = 16 << 10  # of an answer: larger ones are masked in a thread
# Less than most servers keep an idle connection: a request on one that they close would fail.
_KEPT_SECONDS = 4.0

_UNTRACED: Mapping[str, str] = {}

Turn = AbstractAsyncContextManager[None]


class HeldBytes:
    """The bytes of bodies that one call holds, until its `with` ends."""

    def __init__(self, all_held: Counter[str], tenant: str) -> None:
        self._all_held = all_held
        self._tenant = tenant
        self._own = 0

    def add(self, size: int) -> None:
        """Hold more. EAGAIN, and release all, if the tenant's calls hold too much already."""
        if self._all_held[self._tenant] + size > TENANT_HTTP_BYTES_MAX:
            self._release()  # at once: other calls need not fail as well
            detail = f"bodies of the tenant's calls hold {TENANT_HTTP_BYTES_MAX} bytes"
            raise SyscallError(Errno.EAGAIN, detail)
        self._all_held[self._tenant] += size
        self._own += size

    def __enter__(self) -> "HeldBytes":
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        self._all_held[self._tenant] -= self._own
        self._own = 0
        if not self._all_held[self._tenant]:
            del self._all_held[self._tenant]


class BoundedConnector(aiohttp.TCPConnector):
    """Makes connections that bound the answers of status 1xx before the final one.

    aiohttp skips any number of them, which may be without end.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        make = functools.partial(_Answers, loop=self._loop)
        self._factory = cast("functools.partial[ResponseHandler]", make)


class _Answers(ResponseHandler):
    _informational = 0

    async def read(self) -> Any:
        message, payload = await super().read()
        if message.code >= 200:
            self._informational = 0
            return message, payload
        self._informational += 1
        if self._informational > HTTP_INFORMATIONAL_MAX:
            raise aiohttp.ClientPayloadError("too many answers of status 1xx")
        return message, payload


class HttpEgress:
    """Makes requests under the operator's rules; without rules, none."""

    def __init__(
        self,
        rules: tuple[HttpRule, ...],
        resolver: Callable[[str], AbstractResolver] | None = None,
        injector: Injector | None = None,
    ) -> None:
        """`resolver`: returns a tenant's resolver; by default the system's.

        `injector`: fills secrets into headers; by default there are none.
        """
        self._rules = rules
        self._injector = injector or Injector(_no_secrets)
        self._resolver = resolver or ResolverThreads().resolver_for
        self._held: Counter[str] = Counter()  # bytes of bodies, by tenant
        self._tenant_locks = TenantLocks()  # for masking secrets in answers
        self._sessions: dict[tuple[HttpRule, str], aiohttp.ClientSession] = {}

    async def stop(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def call(
        self, tenant: str, request: HttpRequest, trace: Mapping[str, str] = _UNTRACED
    ) -> bytes:
        """Make a request; return msgpack {status, headers, body}.

        `trace` are headers for rules that have `trace_context`; the program's own remain.

        Raises SyscallError: EACCES, the tenant may not, or a secret may not go there; ENOENT, no
        such secret; EFBIG, the answer is too large; EAGAIN, bodies of the tenant's calls hold too
        much; ETIMEDOUT; EIO, the network, the server, or its certificate.
        """
        injected = await self._injector.inject(tenant, request)
        most_ms = request.timeout_ms or HTTP_MS_DEFAULT
        try:
            async with asyncio.timeout(most_ms / 1000):
                with HeldBytes(self._held, tenant) as held:
                    held.add(len(request.body))
                    return await self._follow(tenant, request, held, injected, trace)
        except SyscallError as error:
            if not injected:
                raise
            raise SyscallError(error.errno, injected.mask_error(error.detail)) from None
        except TimeoutError:
            raise SyscallError(Errno.ETIMEDOUT, f"no answer within {most_ms} ms") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            refused = _refused(error)
            if refused is not None:
                words = injected.mask_error(str(refused.strerror))
                raise SyscallError(Errno.EACCES, words) from (None if injected else error)
            words = injected.mask_error(str(error)) or type(error).__name__
            raise SyscallError(Errno.EIO, words) from (None if injected else error)

    async def _follow(
        self,
        tenant: str,
        request: HttpRequest,
        held: HeldBytes,
        injected: Injected,
        trace: Mapping[str, str],
    ) -> bytes:
        for _ in range(HTTP_REDIRECTS_MAX + 1):
            rule = self._rule(tenant, request)
            session = self._session(rule, tenant)
            headers = injected.headers(request)
            if rule.trace_context and not trace.keys() & headers.keys():
                headers = {**headers, **trace}
            async with session.request(
                request.method,
                request.url,
                headers=headers,
                data=request.body or None,
                allow_redirects=False,
                skip_auto_headers=("Content-Type",),
            ) as response:
                target = response.headers.get("Location")
                if response.status not in _REDIRECTS or target is None:
                    turn = self._tenant_locks.of(tenant)
                    return await _read(response, held, injected, turn)
                response.close()  # without reading its body
            injected.redirected = bool(injected)
            request = _redirected(request, response.status, target)
        raise SyscallError(Errno.EIO, f"more than {HTTP_REDIRECTS_MAX} redirects")

    def _rule(self, tenant: str, request: HttpRequest) -> HttpRule:
        rules = [r for r in self._rules if r.serves(tenant) and r.covers(request.url)]
        if not rules:
            raise SyscallError(Errno.EACCES, f"{request.url} is not in the tenant's allow list")
        for rule in rules:
            if request.method in rule.methods:
                return rule
        detail = f"{request.method} of {request.url} is not in the tenant's allow list"
        raise SyscallError(Errno.EACCES, detail)

    def _session(self, rule: HttpRule, tenant: str) -> aiohttp.ClientSession:
        session = self._sessions.get((rule, tenant))
        if session is None:
            session = self._sessions[rule, tenant] = self._new_session(rule, tenant)
        return session

    def _new_session(self, rule: HttpRule, tenant: str) -> aiohttp.ClientSession:
        connector = BoundedConnector(
            resolver=CheckedResolver(self._resolver(tenant), rule.networks),
            socket_factory=CheckedSockets(rule.networks),
            use_dns_cache=False,
            limit=0,
            keepalive_timeout=_KEPT_SECONDS,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": _AGENT, "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=None),  # `call` has a timeout of its own
            auto_decompress=False,
            trust_env=False,
            middlewares=(_once,),
            max_line_size=HTTP_HEADER_LINE_BYTES_MAX,
            max_field_size=HTTP_HEADER_LINE_BYTES_MAX,
            max_headers=HTTP_HEADER_LINES_MAX,
        )


async def _once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Make a request with effects once: aiohttp would repeat a PUT and a DELETE."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method in _SAFE:
            raise
        raise aiohttp.ClientError(str(error)) from error


async def _no_secrets(_tenant: str, _names: Iterable[str]) -> dict[str, Secret]:
    return {}


async def _read(
    response: aiohttp.ClientResponse, held: HeldBytes, injected: Injected, turn: Turn
) -> bytes:
    injected.check_answer(response.headers.get("Content-Encoding", ""))
    headers: dict[str, str] = {}
    for name, value in response.headers.items():
        key = name.lower()
        before = headers.get(key)
        # Joined to one list, except cookies, which may contain commas.
        joint = "\n" if key == "set-cookie" else ", "
        headers[key] = value if before is None else f"{before}{joint}{value}"
    if sum(len(k) + len(v) for k, v in headers.items()) > HTTP_HEADER_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"headers of more than {HTTP_HEADER_BYTES_MAX} bytes")
    body = bytearray()
    async for chunk in response.content.iter_any():
        held.add(len(chunk))
        body += chunk
        if len(body) > HTTP_BODY_BYTES_MAX:
            response.close()
            raise SyscallError(Errno.EFBIG, f"a body of more than {HTTP_BODY_BYTES_MAX} bytes")
    shown = bytes(body)
    if injected and len(shown) > _IN_THREAD_BYTES:  # one search for each encoding of each secret
        async with turn:
            headers, shown = await asyncio.to_thread(_masked, injected, headers, shown)
    elif injected:
        headers, shown = _masked(injected, headers, shown)
    answer: dict[str, Any] = {"status": response.status, "headers": headers, "body": shown}
    packed: bytes = msgpack.packb(answer, unicode_errors="replace")
    return packed


def _masked(
    injected: Injected, headers: dict[str, str], body: bytes
) -> tuple[dict[str, str], bytes]:
    masked = {injected.mask_text(k): injected.mask_text(v) for k, v in headers.items()}
    return masked, injected.mask(body)


def _redirected(request: HttpRequest, status: int, target: str) -> HttpRequest:
    """Return the request of a redirect, as browsers make it."""
    try:
        url = parse_url(urljoin(str(request.url), target))
    except (SyscallError, ValueError) as error:
        raise SyscallError(Errno.EIO, f"a redirect to no http(s) URL: {error}") from error
    method, body, headers = request.method, request.body, request.headers
    to_get = method != "HEAD" if status == 303 else method == "POST" and status in (301, 302)
    if to_get:
        method, body = "GET", b""
        headers = {k: v for k, v in headers.items() if k not in _ABOUT_BODY}
    if _origin(url) != _origin(request.url):
        headers = {k: v for k, v in headers.items() if k not in _CREDENTIALS}
        headers = without_secrets(headers)
    return HttpRequest(method, url, headers, body)


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    return url.scheme, url.raw_host, url.port


def _refused(error: BaseException | None) -> RefusedError | None:
    """Return the RefusedError in an error's chain of causes, or None."""
    while error is not None:
        if isinstance(error, RefusedError):
            return error
        error = error.__cause__ or error.__context__
    return None
