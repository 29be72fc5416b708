"""A prompt's pages, by keys under which equal pages of other requests are found."""

from typing import Final

from symphony_kernel.kvfs.pages.prefix_cache import Node
from symphony_kernel.protocol.limits import PAGE_TOKENS

_PAGE_BYTES: Final = 4 * PAGE_TOKENS  # of u32 tokens


class PromptPages:
    """The whole pages of a file's tokens with a request's tokens behind them (u32)."""

    __slots__ = ("added", "keys", "known", "node", "offered", "pages_max", "removed", "tokens")

    def __init__(self, owner: tuple[str, str], tokens: bytes) -> None:
        """`owner`: the tenant, and the identity of its adapter."""
        self.tokens = tokens
        # A page's key stands for its owner, its tokens and all tokens before it. Keys that are
        # equal by chance cost a step's wait: the cache compares tokens.
        self.keys: list[int] = []
        key = hash(owner)
        for start in range(0, len(tokens) - _PAGE_BYTES + 1, _PAGE_BYTES):
            key = hash((key, tokens[start : start + _PAGE_BYTES]))
            self.keys.append(key)
        self.pages_max = (len(tokens) // 4 - 1) // PAGE_TOKENS  # to take: one token is computed
        # As it was looked up in the cache last, when so many pages had been added and removed:
        self.added = self.removed = -1
        self.known = 0  # pages, from the first, that the cache had on the device
        self.node: Node | None = None  # of the last of them; None: look from the first
        self.offered = 0  # pages
