"""The syscall table of the worker: which handler runs for an import.

    guest -> fiber (copies the arguments) -> worker's loop -> the handler here -> the call's result

A handler takes the instance and the call's arguments (i32 unsigned, i64 signed). It returns the
result, or None if it has suspended the guest and resumes it later. It checks everything: a guest's
mistake is a SyscallError, which becomes a negative result. It raises `Ending` to end the program,
and nothing else, for any arguments.
"""

from collections.abc import Callable

from symphony_kernel.protocol.errno import Errno

from symphony_runtime.abi import LIP, WASI, Signature, allowed_imports, table
from symphony_runtime.engine.fiber import Import
from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.syscalls import egress, family, kv, model, process, wasi

Handler = Callable[..., int | None]

LIP_HANDLERS: dict[str, Handler] = {
    "input_read": process.input_read,
    "send": process.send,
    "recv": process.recv,
    "log": process.log,
    "exit": process.exit_,
    "clock_ms": process.clock_ms,
    "unix_ms": process.unix_ms,
    "random": process.random,
    "sleep": process.sleep,
    "spawn": family.spawn,
    "join": family.join,
    "channel_send": process.channel_send,
    "channel_recv": process.channel_recv,
    "wait": process.wait,
    "take": process.take,
    "claim": process.claim,
    "cancel": process.cancel,
    "last_error": process.last_error,
    "model_info": model.model_info,
    "tokenize": model.tokenize,
    "detokenize": model.detokenize,
    "chat": model.chat,
    "pred": model.pred,
    "pred_claim": model.pred_claim,
    "generate": model.generate,
    "constraint": model.constraint,
    "constraint_close": model.constraint_close,
    "kv_create": kv.kv_create,
    "kv_open": kv.kv_open,
    "kv_fork": kv.kv_fork,
    "kv_extract": kv.kv_extract,
    "kv_append": kv.kv_append,
    "kv_truncate": kv.kv_truncate,
    "kv_len": kv.kv_len,
    "kv_stat": kv.kv_stat,
    "kv_tokens": kv.kv_tokens,
    "kv_save": kv.kv_save,
    "kv_remove": kv.kv_remove,
    "kv_list": kv.kv_list,
    "kv_list_after": kv.kv_list_after,
    "kv_advise": kv.kv_advise,
    "kv_grant": family.kv_grant,
    "kv_granted": family.kv_granted,
    "kv_offer": kv.kv_offer,
    "kv_match": kv.kv_match,
    "kv_close": kv.kv_close,
    "http": egress.http,
    "tool": egress.tool,
    "tools": egress.tools,
}
WASI_HANDLERS: dict[str, Handler] = {
    "args_get": wasi.none_get,
    "args_sizes_get": wasi.none_sizes_get,
    "clock_time_get": wasi.clock_time_get,
    "environ_get": wasi.none_get,
    "environ_sizes_get": wasi.none_sizes_get,
    "fd_close": wasi.bad_fd,
    "fd_fdstat_get": wasi.bad_fd,
    "fd_prestat_dir_name": wasi.bad_fd,
    "fd_prestat_get": wasi.bad_fd,
    "fd_seek": wasi.bad_fd,
    "fd_write": wasi.fd_write,
    "proc_exit": process.exit_,
    "random_get": wasi.random_get,
    "sched_yield": wasi.sched_yield,
}


def not_implemented(instance: Instance, *args: int) -> int:  # noqa: ARG001
    """Answer a call of the ABI that is not implemented yet."""
    return -Errno.ENOSYS


def imports() -> list[Import]:
    """Return all imports, in the order of `handlers`."""
    return [Import(module, name, kind) for (module, name), kind in allowed_imports().items()]


def handlers() -> list[tuple[Handler, bool]]:
    """Return each import's handler, and whether its result is an i64."""
    return [(_handler(*key), _wide(kind)) for key, kind in allowed_imports().items()]


def _handler(module: str, name: str) -> Handler:
    if module == WASI:
        return WASI_HANDLERS[name]
    if module != LIP:
        assert (module, name) == ("env", "abort")
        return wasi.abort
    since = {call.name: call.since for call in table().calls}
    assert bool(since[name]) == (name in LIP_HANDLERS), f"{name}: table and handlers differ"
    return LIP_HANDLERS[name] if since[name] else not_implemented


def _wide(kind: Signature) -> bool:
    return kind.results == ("i64",)
