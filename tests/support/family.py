"""A program with children."""

import msgpack
from wasmtime import wat2wasm

from tests.support.worker.guests import call, data, drop, main
from tests.support.worker.snippets import child

_CHILD, _IDLE = [msgpack.packb({"entry": entry, "input": b"", "grants": []})
                 for entry in ("child", "idle")]  # fmt: skip
_SLEEP = f"{call('await', call('sleep', 86_400_000))} (i32.const 0)"
# Spawns a child and joins it, spawns another one, which sleeps for a day, and sleeps itself.
PARENT_WASM = bytes(
    wat2wasm(
        main(
            f"""{drop("claim", call("spawn", 100, len(_CHILD)), 5000, 4)}
               {drop("claim", call("join", "(i32.load (i32.const 5000))"), 6000, 100)}
               {drop("claim", call("spawn", 200, len(_IDLE)), 5000, 4)} {_SLEEP}""",
            data(100, _CHILD), data(200, _IDLE), child("(i32.const 3)"),
            f'(func (export "idle") (result i32) {_SLEEP})',
        )
    )
)  # fmt: skip
