"""Whether a tenant has tokens left of this minute, before a request of an OpenAI route begins."""

from aiohttp import web
from symphony_kernel.protocol.errno import SyscallError

from symphony_runtime.gateway.admission.rate_limit import TOKENS, tokens_refused
from symphony_runtime.gateway.http.context import services
from symphony_runtime.gateway.links.links import KernelAwayError


async def check_tokens(request: web.Request, tenant: str) -> None:
    """Let a request of a tenant begin, if it has tokens left; its answer will tell how many.

    Raises:
        Problem: 429, there are none; 503, the kernel that counts them is away.
    """
    runs = services(request).runs
    try:
        tokens = await runs.kernel_limits.tokens_left(tenant)
    except (KernelAwayError, SyscallError) as error:
        raise runs.admission.unavailable("kernel", str(error)) from error
    if tokens is None:
        return
    request[TOKENS] = tokens
    if tokens[2] > 0:
        runs.metrics.count_limit(tenant, "tokens_per_minute")
        raise tokens_refused(*tokens)
