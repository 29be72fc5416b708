"""A prompt's pages, by keys under which equal pages of other requests are found."""

from typing import Final

from symphony_kernel.protocol.limits import PAGE_TOKENS

_PAGE_BYTES: Final = 4 * PAGE_TOKENS  # of u32 tokens


class PromptPages:
    """The whole pages of a file's tokens with a request's tokens behind them (u32)."""

    __slots__ = ("changes", "keys", "known", "offered", "pages_max", "tokens")

    def __init__(self, tenant: str, tokens: bytes) -> None:
        self.tokens = tokens
        # A page's key stands for its tenant, its tokens and all tokens before it. Keys that are
        # equal by chance cost a step's wait: the cache compares tokens.
        self.keys: list[int] = []
        key = hash(tenant)
        for start in range(0, len(tokens) - _PAGE_BYTES + 1, _PAGE_BYTES):
            key = hash((key, tokens[start : start + _PAGE_BYTES]))
            self.keys.append(key)
        self.pages_max = (len(tokens) // 4 - 1) // PAGE_TOKENS  # to take: one token is computed
        self.changes = -1  # of the cache when it was looked up
        self.known = 0  # pages, from the first, that the cache had on the device then
        self.offered = 0  # pages
