"""Guests that a dying kernel must not change: each decodes for a while and sends all it got.

Every one reads [first token, rounds] from its input (two bytes), so that many differ.
"""

import msgpack
from wasmtime import wat2wasm

from tests.support.worker.generating_guests import given
from tests.support.worker.guests import call, data, drop, main, times
from tests.support.worker.snippets import KV

_START = f"""
  {drop("input_read", 64, 2)}
  (local.set $n (i32.load8_u (i32.const 65)))
  (i32.store (i32.const 0) (i32.load8_u (i32.const 64)))"""
_LOCALS = "(local $kv i32) (local $n i32) (local $t i32) (local $i i32)"
_SAMPLE = {"sample": {"temperature": 1.0, "top_p": 0.95, "seed": 11}}
_OPTIONS_AT, _ROOM = 1024, 4096


def _pred(kv: str, at: int, count: int, options: bytes = b"") -> str:
    return call("pred", kv, at, count, 0, _OPTIONS_AT, len(options))


def _loaded(at: int) -> str:
    return f"(i32.load (i32.const {at}))"


def _decoding(kv: str, options: bytes = b"") -> str:
    """Decode $n tokens one by one from the one at 0, and send each record."""
    return f"""
      (loop $next
        {drop("claim", _pred(kv, 0, 1, options), 0, 8)} {drop("send", 0, 8)}
        (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))"""


def decoder(options: bytes = b"") -> str:
    """A loop of preds."""
    body = f"""{_START} (local.set $kv (call $kv_create))
      {_decoding(KV, options)} (i32.const 0)"""
    return main(body, data(_OPTIONS_AT, options), locals_=_LOCALS)


def generator(options: bytes) -> str:
    """As many tokens with `generate`, and then twice as many behind half of them."""
    once = f"""
      (local.set $t {call("generate", KV, 0, 1, _OPTIONS_AT, len(options))})
      (block $done (loop $next
        (local.set $i {call("claim", "(local.get $t)", _ROOM, 8)})
        (br_if $done (i32.le_s (local.get $i) (i32.const 0)))
        {drop("send", _ROOM, "(local.get $i)")}
        (br $next)))
      (if (local.get $i) (then (return (i32.sub (i32.const 0) (local.get $i)))))"""
    body = f"""{_START} (local.set $kv (call $kv_create)) {once}
      (call $say (call $kv_truncate (local.get $kv) (local.get $n)))
      {once} (call $say (call $kv_len (local.get $kv))) (i32.const 0)"""
    return main(body, data(_OPTIONS_AT, options), locals_=_LOCALS)


def brancher() -> str:
    """Four forks of one prompt, decoded side by side; the second one is rolled back each time."""
    forks = "".join(
        f"(i32.store (i32.const {256 + 4 * i}) (call $kv_fork (local.get $kv)))"
        f"(i32.store (i32.const {128 + 8 * i}) (i32.const {i + 3}))"
        for i in range(4)
    )
    asked = "".join(
        f"(i32.store (i32.const {288 + 4 * i}) {_pred(_loaded(256 + 4 * i), 128 + 8 * i, 1)})"
        for i in range(4)
    )
    taken = "".join(drop("claim", _loaded(288 + 4 * i), 128 + 8 * i, 8) for i in range(4))
    body = f"""{_START} (local.set $kv (call $kv_create))
      {drop("claim", _pred(KV, 512, 40), _ROOM, 8)} {drop("send", _ROOM, 8)}
      {forks}
      (loop $next {asked} {taken}
        {drop("send", 128, 32)} {drop("kv_truncate", _loaded(260), 40)}
        (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
      (i32.const 0)"""
    prompt = b"".join((token % 50 + 3).to_bytes(4, "little") for token in range(40))
    return main(body, data(512, prompt), locals_=_LOCALS)


def family() -> str:
    """A parent computes a prompt and grants it to two children, who decode behind forks of it."""
    grants = [{"handle": 1 << 16, "rights": 1, "name": "kv"}]
    made = [
        msgpack.packb({"entry": "child", "input": bytes([5 + child, 6]), "grants": grants})
        for child in range(2)
    ]
    spawned = "".join(
        drop("claim", call("spawn", 600 + 100 * i, len(packed)), 256 + 4 * i, 4)
        for i, packed in enumerate(made)
    )
    joined = "".join(
        drop("send", _ROOM, call("claim", call("join", _loaded(256 + 4 * i)), _ROOM, 4000))
        for i in range(2)
    )
    body = f"""{_START} (local.set $kv (call $kv_create))
      {_decoding(KV)}
      {spawned} {joined}
      (call $say (call $kv_len (local.get $kv))) (i32.const 0)"""
    child = f"""(func (export "child") (result i32) {_LOCALS} {_START}
      (local.set $kv (call $kv_fork (call $kv_granted (i32.const 80) (i32.const 2))))
      {_decoding(KV)} (i32.const 3))"""
    segments = [data(600 + 100 * i, packed) for i, packed in enumerate(made)]
    return main(body, child, data(80, "kv"), *segments, locals_=_LOCALS)


def saver() -> str:
    """Computes three tokens and saves them, durably, under the name that is its input."""
    body = f"""
      (local.set $n {call("input_read", 64, 64)})
      (local.set $kv (call $kv_create))
      {drop("claim", _pred(KV, 512, 3), _ROOM, 8)}
      {call("kv_save", KV, 64, "(local.get $n)", 3)}"""
    return main(body, locals_=_LOCALS)


def teller() -> str:
    """Sends 40 messages, a few milliseconds apart."""
    body = f"""{_START}
      (local.set $n (i32.const 0))
      {times(40, drop("send", _ROOM, 1000) + call("await", call("sleep", 5)))} (i32.const 0)"""
    return main(body, locals_=_LOCALS)


def _wasm(source: str) -> bytes:
    return bytes(wat2wasm(source))


PROGRAMS = {
    "greedy": _wasm(decoder()),
    "sampled": _wasm(decoder(given(get=_SAMPLE))),
    "generate": _wasm(generator(given(max=24))),
    "generate-sampled": _wasm(generator(given(max=24, get=_SAMPLE))),
    "branches": _wasm(brancher()),
    "family": _wasm(family()),
}

SAVER, TELLER = _wasm(saver()), _wasm(teller())


def inputs(number: int, rounds: int) -> str:
    """The input of run `number`, whose first token differs from its neighbours'; up to 127."""
    assert 0 < rounds < 128, "a byte of UTF-8 each"
    return chr(33 + number % 90) + chr(rounds)
