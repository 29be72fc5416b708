"""Model calls: text, tokens, `pred` and `generate`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgpack
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.generate_options import parse_generate_options
from symphony_kernel.protocol.limits import (
    CONSTRAINT_BYTES_MAX,
    CONSTRAINT_WORDS_MAX,
    PRED_OPTIONS_BYTES_MAX,
    PRED_RESULT_BYTES_MAX,
    PRED_TOKENS_MAX,
    TOKENIZE_BYTES_MAX,
)
from symphony_kernel.protocol.messages import Op
from symphony_kernel.protocol.pred_options import parse_pred_options

from symphony_runtime.worker.handles import APPEND, READ
from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.syscalls import validation
from symphony_runtime.worker.text.tokenizer import Pieces, whole

_INLINE_BYTES_MAX = 4 << 10  # a larger input goes to the text pool
_LARGE_BYTES = 4 << 10  # bytes of arguments: many such calls could fill the link
_CONSTRAINT_KINDS = 3
_PRED = int(Op.PRED)
_READ_APPEND = READ | APPEND
_GENERATE = int(Op.GENERATE)


def model_info(instance: Instance, pointer: int, capacity: int) -> int:
    """Write msgpack of the public facts of the model."""
    instance.fiber.check(pointer, capacity)
    return validation.put(instance, pointer, capacity, instance.services.text.info)


def tokenize(instance: Instance, pointer: int, length: int, out: int, capacity: int) -> int | None:
    """Write u32 tokens and return their number; `capacity` counts tokens."""
    instance.fiber.check(out, 4 * capacity)
    process = instance.services.text.tokenize_pieces
    puts = partial(validation.put_tokens, instance, out, capacity)
    return _process_text(instance, process, pointer, length, puts)


def detokenize(instance: Instance, tokens: int, count: int, out: int, capacity: int) -> int | None:
    """Write the tokens' raw bytes."""
    instance.fiber.check(out, capacity)
    process = instance.services.text.detokenize_pieces
    puts = partial(validation.put, instance, out, capacity)
    return _process_text(instance, process, tokens, 4 * count, puts)


def chat(instance: Instance, pointer: int, length: int, out: int, capacity: int) -> int | None:
    """Write the u32 tokens of msgpack messages through the model's chat template."""
    instance.fiber.check(out, 4 * capacity)
    process = instance.services.text.chat_pieces
    puts = partial(validation.put_tokens, instance, out, capacity)
    return _process_text(instance, process, pointer, length, puts)


def chat_with(instance: Instance, pointer: int, length: int, out: int, capacity: int) -> int | None:
    """Write the u32 tokens of a msgpack conversation with tools and template variables."""
    instance.fiber.check(out, 4 * capacity)
    pieces = instance.services.text.chat_with_pieces
    puts = partial(validation.put_tokens, instance, out, capacity)
    return _process_text(
        instance, lambda data: _explained(instance, pieces(data)), pointer, length, puts
    )


def _explained(instance: Instance, pieces: Pieces) -> Pieces:
    """Keep what is wrong with a text for `last_error`: a chat template may say it."""
    try:
        return (yield from pieces)
    except SyscallError as error:
        instance.last_error = error.detail[:CONSTRAINT_WORDS_MAX].encode(errors="replace")
        raise


def pred(
    instance: Instance, kv: int, tokens: int, count: int, positions: int, opts: int, opts_len: int
) -> int | None:
    """Return a ticket for one forward pass."""
    data, places, options, promised = _read_pass(
        instance, kv, tokens, count, positions, opts, opts_len
    )
    ticket = instance.tickets.issue(promised)
    instance.pending[ticket.number] = ticket
    # Inlined `ask_kernel`: this and the next are the hot calls.
    size = 2 * len(data) + len(options)
    instance.services.kernel_call(
        [instance.id, _PRED, ticket.number, kv, data, places, options], size
    )
    return ticket.number if size < _LARGE_BYTES else instance.paced(ticket.number)


def pred_claim(
    instance: Instance, kv: int, tokens: int, count: int, positions: int, opts: int, opts_len: int,
    out: int, capacity: int,
) -> int | None:  # fmt: skip
    """`pred` and `claim` of its ticket in one call; returns a length; suspends.

    A result longer than `capacity` is not computed. The result is never held here, so it needs no
    ticket, but it has a ticket's number.
    """
    instance.fiber.check(out, capacity)
    data, places, options, promised = _read_pass(
        instance, kv, tokens, count, positions, opts, opts_len
    )
    if promised > capacity:
        return promised
    number = instance.tickets.number()
    instance.pending[number] = out
    call = [instance.id, _PRED, number, kv, data, places, options]
    instance.services.kernel_call(call, 2 * len(data) + len(options))
    return None


def generate(
    instance: Instance, kv: int, tokens: int, count: int, opts: int, opts_len: int
) -> int | None:
    """Return a ticket for generated tokens, while the kernel runs ahead."""
    fiber = instance.fiber
    data = fiber.read(tokens, 4 * count)
    fiber.check(opts, opts_len)
    instance.handles.require(kv, APPEND)
    if count > PRED_TOKENS_MAX or opts_len > PRED_OPTIONS_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"{count} tokens, {opts_len} bytes of options")
    if not count:
        raise SyscallError(Errno.EINVAL, "no tokens")
    options = fiber.read(opts, opts_len)
    asked = parse_generate_options(options)
    record = asked.pred.place_bytes(instance.services.text.vocab_size, 0)
    stream = instance.tickets.issue_stream(record, asked.ahead, asked.gathered)
    instance.handles.generating.add(kv)
    stream.drop = partial(instance.handles.generating.discard, kv)
    instance.pending[stream.number] = stream
    size = 2 * len(data) + len(options)
    instance.services.kernel_call([instance.id, _GENERATE, stream.number, kv, data, options], size)
    return stream.number if size < _LARGE_BYTES else instance.paced(stream.number)


def constraint(instance: Instance, kind: int, pointer: int, length: int) -> None:
    """Return a handle of a compiled schema, expression or grammar; suspends."""
    instance.fiber.check(pointer, length)
    if kind >= _CONSTRAINT_KINDS:
        raise SyscallError(Errno.EINVAL, f"no kind {kind}")
    if length > CONSTRAINT_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"{length} bytes, limit {CONSTRAINT_BYTES_MAX}")
    text = instance.fiber.read(pointer, length)

    def finish(reply: Any) -> int:
        if isinstance(reply, int):
            return reply
        errno, detail = msgpack.unpackb(reply)
        instance.last_error = detail.encode()
        raise SyscallError(Errno(errno), detail)

    instance.suspend_on_kernel(finish, Op.CONSTRAINT, kind, text)


def constraint_close(instance: Instance, handle: int) -> None:
    instance.suspend_on_kernel(int, Op.CONSTRAINT_CLOSE, handle)


def _read_pass(
    instance: Instance, kv: int, tokens: int, count: int, positions: int, opts: int, opts_len: int
) -> tuple[bytes, bytes | None, bytes, int]:
    """Return a pass's tokens, positions and options, and its result's length in bytes."""
    fiber = instance.fiber
    data = fiber.read(tokens, 4 * count)
    places = fiber.read(positions, 4 * count) if positions else None
    if not opts_len and opts <= fiber.size:
        options: bytes | None = b""
    else:
        options = fiber.read(opts, opts_len) if opts_len <= PRED_OPTIONS_BYTES_MAX else None
    instance.handles.require(kv, _READ_APPEND)
    if options is None or count > PRED_TOKENS_MAX:
        fiber.check(opts, opts_len)
        raise SyscallError(Errno.EFBIG, f"{count} tokens, {opts_len} bytes of options")
    if not count:
        raise SyscallError(Errno.EINVAL, "no tokens")
    return data, places, options, 8 if not options else _result_bytes(instance, options, count)


def _result_bytes(instance: Instance, data: bytes, count: int) -> int:
    """Return a pred's result length in bytes. Raise SyscallError for wrong options."""
    options = parse_pred_options(data)
    at = options.at
    if isinstance(at, tuple) and (len(at) > count or max(at, default=0) >= count):
        raise SyscallError(Errno.EINVAL, "an index in at is outside the call's tokens")
    if options.parents is not None and len(options.parents) != count:
        raise SyscallError(Errno.EINVAL, f"parents must have {count} entries")
    text = instance.services.text
    size = options.places(count) * options.place_bytes(text.vocab_size, text.hidden_size)
    if size > PRED_RESULT_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"a result of {size} bytes")
    return size


def _process_text(
    instance: Instance, process: Callable[[bytes], Pieces], pointer: int, length: int,
    finish: Callable[[bytes], int],
) -> int | None:  # fmt: skip
    """Finish at once for a small input; else suspend until the text pool is done."""
    instance.fiber.check(pointer, length)
    if length > TOKENIZE_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"{length} bytes, limit {TOKENIZE_BYTES_MAX}")
    pieces = process(instance.fiber.read(pointer, length))
    if length <= _INLINE_BYTES_MAX:
        return finish(whole(pieces))
    instance.suspend_on_text(pieces, length, finish)
    return None
