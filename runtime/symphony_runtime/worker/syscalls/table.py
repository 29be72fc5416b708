"""The syscall table of the worker: which handler runs for an import.

    guest -> fiber (copies the arguments) -> worker's loop -> the handler here -> the call's result

A handler takes the instance and the call's arguments (i32 unsigned, i64 signed). It returns the
result, or None if it has suspended the guest and resumes it later. It checks everything: a guest's
mistake is a SyscallError, which becomes a negative result. It raises `Ending` to end the program,
and nothing else, for any arguments.
"""

from collections.abc import Callable

from symphony_runtime.abi import LANGUAGE, LIP, WASI, allowed_imports
from symphony_runtime.worker.syscalls import egress, family, kv, language, model, process, wasi

Handler = Callable[..., int | None]

_LIP_CALLS: tuple[Handler, ...] = (
    process.input_read, process.send, process.recv, process.log, process.exit_, process.clock_ms,
    process.unix_ms, process.random, process.sleep, process.channel_send, process.channel_recv,
    process.wait, process.take, process.claim, process.cancel, process.last_error,
    family.spawn, family.join, family.kv_grant, family.kv_granted,
    model.model_info, model.tokenize, model.detokenize, model.chat, model.chat_with, model.pred,
    model.pred_claim, model.generate, model.constraint, model.constraint_close,
    kv.kv_create, kv.kv_open, kv.kv_fork, kv.kv_extract, kv.kv_append, kv.kv_truncate, kv.kv_len,
    kv.kv_stat, kv.kv_tokens, kv.kv_save, kv.kv_remove, kv.kv_list, kv.kv_list_after,
    kv.kv_advise, kv.kv_offer, kv.kv_match, kv.kv_close,
    egress.http, egress.tool, egress.tools,
)  # fmt: skip
LIP_HANDLERS: dict[str, Handler] = {call.__name__.rstrip("_"): call for call in _LIP_CALLS}
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


def handlers() -> list[tuple[Handler, bool]]:
    """Return the handler of each of `allowed_imports`, and whether its result is an i64."""
    of_module: dict[str, dict[str, Handler]] = {
        LIP: LIP_HANDLERS,
        WASI: WASI_HANDLERS,
        "env": {"abort": wasi.abort},
        LANGUAGE: {"source_read": language.source_read, "fail": language.fail},
    }
    return [
        (of_module[module][name], kind.results == ("i64",))
        for (module, name), kind in allowed_imports().items()
    ]
