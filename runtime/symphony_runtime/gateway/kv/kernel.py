"""Requests to the kernel about a tenant's KV files, with its refusals as problems."""

from typing import Any

from aiohttp import web
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PATH_BYTES_MAX

from symphony_runtime.gateway.errors import Problem, bad_request, not_found
from symphony_runtime.gateway.http.context import services, tenant_of
from symphony_runtime.gateway.links.links import KernelAwayError
from symphony_runtime.gateway.links.models import ServedModel

# The kernel's errnos as status and kind; any other is 400 with the errno's name.
REFUSALS = {
    Errno.EACCES: (403, "forbidden"),
    Errno.EEXIST: (409, "exists"),
    Errno.EFBIG: (413, "too-large"),
    Errno.EDQUOT: (429, "over-quota"),
    Errno.EAGAIN: (429, "too-many"),
    Errno.EIO: (503, "unreadable"),
    Errno.ENOMEM: (503, "no-room"),
    Errno.EBADF: (503, "interrupted"),
    Errno.ENOSYS: (503, "not-kept"),
    Errno.ENOSPC: (507, "disk-full"),
}


async def ask_kernel(request: web.Request, what: str, **args: Any) -> Any:
    """Return the kernel's answer; Problem: the kernel is away, or refuses."""
    model, admission = model_of(request), services(request).runs.admission
    try:
        await model.limits.send_limits(tenant_of(request))
        return await model.kernel.ask(what, tenant=tenant_of(request), **args)
    except KernelAwayError as error:
        raise admission.unavailable("kernel", str(error)) from error
    except SyscallError as error:
        if error.errno is Errno.ENOENT:
            raise not_found("KV file", str(args.get("path", ""))) from error
        if error.errno not in REFUSALS:
            raise bad_request("kv", str(error), errno=error.errno.name) from error
        status, kind = REFUSALS[error.errno]
        problem = Problem(status, kind, error.detail or str(error), errno=error.errno.name)
        admission.set_retry_after(problem)
        raise problem from error


def model_of(request: web.Request) -> ServedModel:
    """Return the model whose files a request is about: `model` of the query, or the default.

    Raises Problem: 404, there is no such model; 503, the kernel has not said its name yet.
    """
    runs, name = services(request).runs, request.query.get("model")
    model = runs.models.default if name is None else runs.models.find(name)
    if model is None:
        if not runs.models.named:
            raise runs.admission.unavailable("kernel", "the kernel is not ready")
        raise not_found("model", name or "")
    return model


def path_of(request: web.Request) -> str:
    """Return the file's path in the address; Problem 400."""
    return checked_path(request.match_info["path"])


def checked_path(path: str) -> str:
    if len(path.encode(errors="surrogatepass")) > PATH_BYTES_MAX:
        raise bad_request("bad-request", f"a path has at most {PATH_BYTES_MAX} bytes")
    return path
