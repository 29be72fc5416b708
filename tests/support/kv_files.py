"""A program whose files share pages, for tests of what is shown of files.

It computes its input, a text of less than 2,000 tokens. It saves that as talk/first, with 20 tokens
more as talk/second, and entries 16 to 40 as cut. It offers the text's pages.
"""

from tests.e2e.programs import wasm
from tests.support.worker.guests import call, data, drop, main
from tests.support.worker.snippets import CREATE, KV

TEXT = "def add(first, second):\n    return first + second\n\n\n" * 12
_AT = 8192  # of the tokens
_FORK, _CUT, _N = "(local.get $fork)", "(local.get $cut)", "(local.get $n)"


def _checked(expression: str, code: int) -> str:
    return f"(if (i32.lt_s {expression} (i32.const 0)) (then (return (i32.const {code}))))"


def _save(file: str, at: int, path: str, code: int) -> str:
    return _checked(call("kv_save", file, at, len(path), 1), code)


SHARE_WASM = wasm(
    main(
        f"""(local.set $n {call("tokenize", 0, call("input_read", 0, 4096), _AT, 2000)})
           {CREATE} {drop("claim", call("pred", KV, _AT, _N, 0, 0, 0), 5000, 8)}
           {_checked(call("kv_offer", KV), 1)}
           {_save(KV, 6000, "talk/first", 2)}
           (local.set $fork {call("kv_fork", KV)})
           {drop("claim", call("pred", _FORK, _AT, 20, 0, 0, 0), 5000, 8)}
           {_save(_FORK, 6020, "talk/second", 3)}
           (local.set $cut {call("kv_create")})
           {_checked(call("kv_append", _CUT, KV, 16, 40), 4)}
           {_save(_CUT, 6040, "cut", 5)}
           (i32.const 0)""",
        data(6000, "talk/first"),
        data(6020, "talk/second"),
        data(6040, "cut"),
        locals_="(local $n i32) (local $kv i32) (local $fork i32) (local $cut i32)",
    )
)

# The same text's prefix is looked for, as a later run does.
MATCH_WASM = wasm(
    main(
        f"""(local.set $n {call("tokenize", 0, call("input_read", 0, 4096), _AT, 2000)})
           (i32.lt_s {call("kv_match", _AT, _N)} (i32.const 0))""",
        locals_="(local $n i32)",
    )
)
