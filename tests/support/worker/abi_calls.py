"""Arguments for every call of the ABI, by its parameters' names: each is as it should be.

They are for a guest with "x" at NAME_AT, whose first step made a file and whose second one sleeps.
"""

from tests.support.worker.guests import result

NAME_AT, TOKENS_AT = 100, 200
LENGTHS = {"len", "cap", "n", "name_len", "path_len", "opts_len", "after_len"}
POINTERS = {
    "ptr", "name_ptr", "tickets_ptr", "tokens", "positions", "opts", "out", "path", "name",
    "prefix", "after", "ranges",
}  # fmt: skip
KV, TICKET = result(0), result(1)  # a file, and a ticket that never gets ready
VALUES: dict[str, int | str] = {
    "kv": KV, "src": KV, "ticket": TICKET, "level": 1, "kind": 1, "constraint": 1, "pid": 0,
    "rights": 1, "flags": 1, "start": 0, "end": 0, "max": 1, "hint": 0, "arg": 0, "ms": 0,
    "timeout_ms": 0, "code": 0,
}  # fmt: skip


def good(name: str) -> int | str:
    """An argument that is as it should be."""
    if name in VALUES:
        return VALUES[name]
    if name in LENGTHS:
        return 1
    return {"positions": 0, "tokens": TOKENS_AT, "opts": TOKENS_AT}.get(name, NAME_AT)
