"""`GET /` and the console's files, which are built from `console/` and ship in the package.

The files hold nothing secret and need no key. The policy lets them load from this server only, so a
fault in them cannot send a key to another host, and no other page can show them in a frame.
"""

from functools import cache
from importlib import resources

from aiohttp import web

from symphony_runtime.gateway.errors import Problem

FILES = {
    "index.html": "text/html; charset=utf-8",
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "console.js.LEGAL.txt": "text/plain; charset=utf-8",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


async def index(request: web.Request) -> web.StreamResponse:  # noqa: ARG001
    return _answer("index.html")


async def file(request: web.Request) -> web.StreamResponse:
    """Answer with one of the console's files; Problem 404: there is none of that name."""
    return _answer(request.match_info["file"])


def _answer(name: str) -> web.Response:
    content = FILES.get(name)
    if content is None:
        raise Problem(404, "not-found", "the console has no such file")
    return web.Response(body=_read(name), headers={**_HEADERS, "Content-Type": content})


@cache
def _read(name: str) -> bytes:
    return resources.files(__package__).joinpath("files", name).read_bytes()
