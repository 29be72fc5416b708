"""Prefix sharing: requests that begin alike compute their beginning once.

    a chunk ends -> its whole pages are offered -> others take them in place of reserved pages

This concerns requests with the option `share`. Before such a request gets tokens of a step, it
takes the pages that the prefix cache has by then. If a step under way computes its next pages, it
is left out of the step that is being formed. So no request waits for another one: it waits at most
for steps that are formed already, and the fair queue decides which request computes the next chunk.
When that request is cancelled, fails or waits for frames, the next one computes. Tenants never
share.
"""

from collections.abc import Callable
from typing import Final, cast

import numpy as np

from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.pages.prompt_pages import PromptPages
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.request import Request

# Fewer tokens are not worth a step's wait, unless they are a quarter of what the request lacks.
_SAVED_TOKENS_MIN: Final = 64
_SAVED_SHARE: Final = 4


class PrefixSharing:
    """Which pages the steps under way compute, and what requests take from each other.

    `refund` is called with a tenant and the tokens that a request of its need not compute.
    """

    def __init__(self, kvfs: KVFS, refund: Callable[[str, int], None]) -> None:
        self._kvfs = kvfs
        self._refund = refund
        self._computing: dict[int, Request] = {}  # by a page's key

    def is_computed(self, request: Request) -> bool:
        """Whether a step under way computes the pages that the request needs next."""
        computing = self._computing
        if not computing or not _at_page(request):
            return False
        pages = _pages_of(request)
        first = end = max(_next_page(request), self._known(request, pages))
        while end < pages.pages_max and computing.get(pages.keys[end], request) is not request:
            end += 1
        saved, lacks = (end - first) * PAGE_TOKENS, len(pages.tokens) // 4 - first * PAGE_TOKENS
        return saved > 0 and saved >= min(_SAVED_TOKENS_MIN, lacks // _SAVED_SHARE)

    def may_take(self, request: Request) -> bool:
        """Whether the cache has pages that the request needs next."""
        return _at_page(request) and self._known(request, _pages_of(request)) > _next_page(request)

    def take(self, request: Request) -> int:
        """Take cached pages in place of an admitted request's; return how many tokens."""
        pages, first = _pages_of(request), _next_page(request)
        pages.node, pages.added = None, -1  # its admission may have moved some
        count = self._known(request, pages) - first
        if count <= 0:
            return 0
        file = cast(KVFile, request.file)
        self._kvfs.share_computed(request.number, file, pages.tokens, first, count)
        tokens = count * PAGE_TOKENS
        request.shared += tokens
        request.computed += tokens
        self._refund(request.tenant, tokens)
        return tokens

    def compute(self, request: Request, start: int, count: int) -> list[int]:
        """Note that a step computes these tokens of a request; return keys for `ended`."""
        entry = request.file.length + start
        keys = _pages_of(request).keys[entry // PAGE_TOKENS : (entry + count) // PAGE_TOKENS]
        for key in keys:
            self._computing[key] = request
        return keys

    def ended(self, keys: list[int]) -> None:
        """Note that a step has ended which computed these pages."""
        for key in keys:
            self._computing.pop(key, None)

    def offer(self, request: Request) -> None:
        """Offer what a request has computed before it ends, in whole pages."""
        pages, file = _pages_of(request), cast(KVFile, request.file)
        count = (file.length + request.computed) // PAGE_TOKENS
        if count > pages.offered:
            pages.offered = count
            self._kvfs.offer_computed(request.number, file, request.tokens[: request.computed])

    def _known(self, request: Request, pages: PromptPages) -> int:
        """Return how many of its pages, from the first, the cache has on the device."""
        cache = self._kvfs.prefix_cache
        if pages.added == cache.added and pages.removed == cache.removed:
            return pages.known
        if pages.node is None or pages.removed != cache.removed:
            pages.node, pages.known = None, 0
        pages.added, pages.removed = cache.added, cache.removed
        pages.node, found = cache.peek(
            request.tenant, pages.tokens, pages.pages_max, pages.node, pages.known,
            request.options.adapter,
        )  # fmt: skip
        absent = self._kvfs.pool.is_absent(found)
        if absent.any():
            found, pages.node = found[: absent.argmax()], None
        pages.known += len(found)
        return pages.known


def prompt_tokens(request: Request) -> bytes:
    """Return the tokens of a request's file with its own behind them (u32)."""
    return np.concatenate((cast(KVFile, request.file).tokens, request.tokens)).tobytes()


def _pages_of(request: Request) -> PromptPages:
    pages = request.prompt
    if pages is None:
        pages = request.prompt = PromptPages(
            (request.tenant, request.options.adapter), prompt_tokens(request)
        )
    return pages


def _at_page(request: Request) -> bool:
    """Whether a page begins with its next token, and no step under way computes a part of it."""
    return request.placed == request.computed and not request.placed % PAGE_TOKENS


def _next_page(request: Request) -> int:
    return (request.file.length + request.placed) // PAGE_TOKENS
