"""The messages between roles.

Every frame is `[kind, field, ...]`, and these are all messages. `encode` and `decode` convert them
to frames and back. `decode` checks each field's type, because a worker runs untrusted code. The two
hot ones, `Calls` and `Replies`, carry plain lists: their items are checked where they are executed.

    gateway -> kernel   Hello, Register, End, Ask, Spent
    kernel  -> gateway  Welcome, Answer, Exceeded, Traced, Pace
    worker  -> kernel   Hello, Calls, Spent
    kernel  -> worker   Welcome, Replies, Pace
    worker  -> gateway  Hello, Output, Logs, Received, Traced, Ended, Ask, Unask
    gateway -> worker   Welcome, Module, Unload, Start, Deliver, CloseInput, Kill, Credit, Answer,
                        Retire
    with the kernel, both ways: Receipt, ReceiptWanted
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, ClassVar, Final, TypeVar, dataclass_transform, get_origin, get_type_hints

PROTOCOL_VERSION = 2


class MessageError(Exception):
    """A frame is no message, or a field has the wrong type, or the peer may not send it."""


class Op(IntEnum):
    """Kernel operations in `Calls`, with their arguments after [instance, op, seq].

    The worker chooses `seq`, unique in its instance, to identify the reply; 0: no reply. A reply is
    a negative errno, an int, bytes, or what is after the arrow.
    """

    KV_CREATE = 1  # handle; no reply: a failure is sticky (see docs/reference/abi.md)
    KV_OPEN = 2  # handle, path, rights -> rights granted
    KV_FORK = 3  # handle, source; no reply
    KV_EXTRACT = 4  # handle, source, ranges (u32 pairs, bytes); no reply
    KV_APPEND = 5  # handle, source, start, end; no reply
    KV_TRUNCATE = 6  # handle, length -> 0
    KV_LEN = 7  # handle -> entries
    KV_STAT = 8  # handle -> msgpack bytes
    KV_TOKENS = 9  # handle, start, n -> u32 tokens, bytes
    KV_SAVE = 10  # handle, path, flags -> 0
    KV_REMOVE = 11  # path -> 0
    KV_LIST = 12  # prefix -> msgpack bytes
    KV_GRANT = 13  # handle, instance, rights, name -> 0
    KV_GRANTED = 14  # handle, name -> rights
    KV_CLOSE = 15  # handle; no reply
    PRED = 16  # handle, tokens (u32 bytes), positions (u32 bytes or nil), options (bytes) -> bytes
    STAGE = 17  # stage id, [[handle, rights, name], ...] -> 0; for the child that names the stage
    CANCEL = 18  # the seq of a PRED or GENERATE, whose reply becomes ECANCELED; no reply
    # handle, tokens (u32 bytes), options (bytes) -> several replies with records; the last reply is
    # empty or an errno, and is in the frame of the last record
    GENERATE = 19
    TAKEN = 20  # the seq of a GENERATE, records that the program has taken; no reply
    KV_OFFER = 21  # handle -> entries of it in the prefix cache
    KV_MATCH = 22  # handle, tokens (u32 bytes) -> entries of the new file
    KV_LIST_AFTER = 23  # prefix, after, limit -> msgpack bytes
    KV_ADVISE = 24  # handle, hint (see `kv_advise`), argument; no reply
    WAITS = 25  # 1: the instance waits for egress, 0: it is about to continue; no reply
    CONSTRAINT = 26  # kind (see `constraint`), text -> a handle, or msgpack bytes [errno, words]
    CONSTRAINT_CLOSE = 27  # handle; no reply


@dataclass(frozen=True, slots=True)
class Message:
    """The base of all messages."""

    KIND: ClassVar[int] = 0


_M = TypeVar("_M", bound=Message)
_KINDS: dict[int, type[Message]] = {}
_FIELDS: dict[type[Message], list[tuple[str, type]]] = {}  # names, and the types to check


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _message(kind: int) -> Callable[[type[_M]], type[_M]]:
    """Make a class a message: a frozen dataclass whose frames begin with `kind`."""

    def register(cls: type[_M]) -> type[_M]:
        made = dataclass(frozen=True, slots=True)(cls)
        made.KIND = kind
        assert kind not in _KINDS, cls
        _KINDS[kind] = made
        hints = get_type_hints(made)
        types = {
            name: object if hint is Any else get_origin(hint) or hint
            for name, hint in hints.items()
        }
        _FIELDS[made] = [(each.name, types[each.name]) for each in fields(made)]
        return made

    return register


@_message(1)
class Hello(Message):
    """The first frame on a link. `role` is "gateway" or "worker".

    `session` is the session that the link carries (see `sessions`; b"": none). `received` is the
    number of its frames that have been received; -1: it begins. `about` is a worker's description
    for a gateway: {containment: {layer: words}}.
    """

    version: int
    role: str
    name: str
    secret: bytes
    pid: int
    session: bytes = b""
    received: int = -1
    about: dict[str, Any] = field(default_factory=dict)


@_message(2)
class Welcome(Message):
    """The answer to `Hello`.

    From the kernel, `about` is {model: {name, vocab_size, eos, bos, max_context, page_size, dtype},
    tokenizer: bytes of tokenizer.json, chat_template: str or nil, special: {bos_token, eos_token}}.
    From the gateway, and for a resumed session, it is {}. `resumed`: the session continues, and
    `received` of its frames have been received.
    """

    pid: int
    about: dict[str, Any]
    resumed: bool = False
    received: int = 0


@_message(3)
class Ask(Message):
    """A request that is not on a hot path. An `Answer` with its `seq` answers it.

    gateway -> kernel: "limit_tenant" {tenant, limits} (see `limit_table`; nil: the defaults) -> 0,
    "tokens_left" {tenant} -> [tokens, ms until there are some], or nil without a rate limit,
    "held_runs" {tenant} -> the runs whose preds wait for it,
    "kv_list" {tenant, prefix}, "kv_stat" {tenant, path}, "kv_pages" and "kv_prefixes" (see
    `syscalls.views`), "kv_tokens" (see `file_requests`),
    "kv_remove" {tenant, path}, "kv_changes" {tenant} -> changes of names that are not on disk yet,
    "adapter_load", "adapter_names" and "adapters" (see `syscalls.adapters`),
    "statistics" {}, "metrics" {}, "workers" {}, "lips" {tenant},
    "waiting" {}, "forget_prefixes" {tenant} -> pages, "check_integrity" {}.
    worker -> gateway: "spawn" {parent, program (str or nil), entry, input, stage} ->
    {instance, module, entries}; "send" {instance, bytes} -> 0, once the gateway has memory for
    a message of so many bytes; "channel_send" {instance, name, item} -> 0;
    "channel_recv" {instance, name} -> bytes; "tool" and "http" {instance,
    request}, "tools" {instance} -> bytes, as in the ABI.
    """

    seq: int
    what: str
    args: dict[str, Any]


@_message(4)
class Answer(Message):
    """The answer to an `Ask`, a `Register` or an `End`: a value, or a negative errno and words."""

    seq: int
    errno: int
    value: Any


@_message(5)
class Unask(Message):
    """Cancels an `Ask`: its sender wants no answer (a cancelled `channel_recv`)."""

    seq: int


@_message(6)
class Receipt(Message):
    """The number of the session's frames that have been received. Not numbered itself."""

    received: int


@_message(7)
class ReceiptWanted(Message):
    """Asks for a `Receipt`, to drop kept frames. Not numbered itself."""


@_message(10)
class Calls(Message):
    """A worker's kernel calls of one turn: [[instance, op, seq, argument, ...], ...]."""

    calls: list[Any]


@_message(11)
class Replies(Message):
    """One step's results for a worker: [[instance, seq, result], ...]."""

    replies: list[Any]


@_message(12)
class Spent(Message):
    """Processor time that a worker or the gateway has spent: [[instance, microseconds], ...].

    One instance may stand for others of its tenant. For compilers and commits, the gateway gives
    the tenant's name instead of an instance. [tenant, 0] asks whether to throttle a tenant.
    """

    times: list[Any]


@_message(13)
class Pace(Message):
    """Throttles a tenant for `ms`: its instances in a worker, its compilers at the gateway.

    The peer asks at the end of that time. 0 releases the tenant.
    """

    tenant: str
    ms: int


@_message(20)
class Register(Message):
    """Lets an instance call the kernel over the link of `worker`, for `tenant`.

    A child has a `parent` (else 0) and the `stage` whose grants it gets (else 0). `options`:
    {weight: float, trace: bool, and the run's limits kv_tokens, tokens, children, child_depth}.
    Answered with 0.
    """

    seq: int
    instance: int
    tenant: str
    worker: str
    parent: int
    stage: int
    options: dict[str, Any]


@_message(21)
class End(Message):
    """Ends an instance: the kernel frees everything that it held.

    Answered with {prompt_tokens, cached_tokens, completion_tokens, kv_token_ms}.
    """

    seq: int
    instance: int


@_message(22)
class Exceeded(Message):
    """An instance has exceeded a limit that the kernel counts. The gateway kills its run."""

    instance: int
    reason: str


@_message(30)
class Module(Message):
    """A program, sent before the first `Start` (or spawn) that uses it.

    The artefact is machine code. With a `language`, which names a module, it is source for that.
    """

    module: str
    artefact: bytes
    language: str = ""


@_message(31)
class Start(Message):
    """Starts an instance. `limits` has every key of the run's limits (see `gateway/runs`).

    With `trace` the worker sends its calls and its children's (`Traced`). The worker schedules
    `tenant`s fairly.
    """

    instance: int
    module: str
    entry: str
    input: bytes
    limits: dict[str, int]
    trace: bool = False
    tenant: str = ""


@_message(32)
class Deliver(Message):
    """A message from the user, for `recv`."""

    instance: int
    data: bytes


@_message(33)
class CloseInput(Message):
    """The user sends no more messages: `recv` returns EPIPE after the last one."""

    instance: int


@_message(34)
class Kill(Message):
    """Ends an instance and its children at once."""

    instance: int
    reason: str


@_message(35)
class Credit(Message):
    """The gateway has accepted this many more bytes of the instance's output."""

    instance: int
    taken: int


@_message(36)
class Unload(Message):
    """Unloads a program that no instance runs. `Module` would load it again."""

    module: str


@_message(37)
class Retire(Message):
    """Ends a worker's process, which has no runs, so that another replaces it."""


@_message(40)
class Output(Message):
    """A worker's sends of one turn, in order: [[instance, bytes], ...]."""

    messages: list[Any]


@_message(41)
class Logs(Message):
    """A worker's log lines of one turn: [[instance, level, bytes], ...]."""

    lines: list[Any]


@_message(42)
class Ended(Message):
    """An instance (a run's or a child's) has ended.

    `status` is exited, trapped, killed or failed. `usage` is {cpu_ms, wall_ms, syscalls,
    peak_memory_bytes}, children included. `hits` of a run's root counts refused calls of the whole
    run, by the limit's name (see `limit_table`).
    """

    instance: int
    status: str
    exit_code: int
    reason: str
    usage: dict[str, Any]
    hits: dict[str, Any] = field(default_factory=dict)


@_message(43)
class Received(Message):
    """The number of delivered messages that a program has received, and their bytes."""

    instance: int
    messages: int
    taken: int


@_message(44)
class Traced(Message):
    """A batch of events of a traced run, by its root. The last one comes before its end.

    A worker sends calls: [instance, call (str; "": its whole life), began, ended, result or nil,
    suspended (bool)]. The kernel sends preds: [instance, seq, tokens, submitted, ended, errno or 0,
    [[step began, ended, rows, tokens, its own tokens], ...], about (a map: see
    `scheduler.trace.Traces`)]. Times are monotonic seconds.
    """

    instance: int
    events: list[Any]


MESSAGES: Final = tuple(_FIELDS)


def encode(message: Message) -> list[Any]:
    """Return the frame of a message."""
    return [message.KIND, *(getattr(message, name) for name, _ in _FIELDS[type(message)])]


def is_output(frame: list[Any]) -> bool:
    """Return whether a frame is a valid `Output`, to be handled without a message object."""
    return len(frame) == 2 and frame[0] == Output.KIND and type(frame[1]) is list


def decode(frame: list[Any]) -> Message:
    """Return the message of a frame; MessageError if it is none."""
    kind = _KINDS.get(frame[0]) if frame and isinstance(frame[0], int) else None
    if kind is None:
        raise MessageError(f"no message has kind {frame[:1]!r}")
    wanted = _FIELDS[kind]
    if len(frame) != len(wanted) + 1:
        raise MessageError(f"{kind.__name__} has {len(wanted)} fields, not {len(frame) - 1}")
    for (name, of), value in zip(wanted, frame[1:], strict=True):
        # bool is an int in Python, but true is not a valid number.
        if not isinstance(value, of) or (of is int and isinstance(value, bool)):
            raise MessageError(f"{kind.__name__}.{name} must not be a {type(value).__name__}")
    return kind(*frame[1:])
