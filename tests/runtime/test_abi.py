"""The table and the host that is built from it; tests/test_docs.py compares it with its page."""

import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_runtime.abi import (
    ABORT,
    KINDS,
    LANGUAGE,
    LIP,
    VALUE_TYPES,
    WASI,
    WASI_CALLS,
    Signature,
    allowed_imports,
    table,
)
from symphony_runtime.worker import handles
from symphony_runtime.worker.syscalls.table import LIP_HANDLERS, WASI_HANDLERS
from symphony_runtime.worker.syscalls.table import handlers as host_handlers


def test_abi_calls_have_valid_kinds_types_and_documentation() -> None:
    for call in table().calls:
        assert call.kind in KINDS
        assert {p.type for p in call.params} <= VALUE_TYPES
        assert call.doc.endswith(".")
        assert len({p.name for p in call.params}) == len(call.params)
    assert {call.group for call in table().calls} == {"process", "model", "kv", "outside"}
    assert table().version == 1
    assert all(call.since for call in table().calls)
    assert [call.name for call in table().calls if call.kind == "exit"] == ["exit"]
    assert [call.name for call in table().calls if not call.result] == ["exit"]


def test_abi_clocks_alone_return_i64() -> None:
    wide = [call.name for call in table().calls if call.result == "i64"]
    assert wide == ["clock_ms", "unix_ms"]


def test_abi_errnos_and_rights_equal_those_of_the_roles() -> None:
    assert table().errno == {errno.name: errno.value for errno in Errno}
    assert table().rights == {"R": 1, "A": 2, "T": 4, "S": 8, "G": 16}
    ours = handles.READ, handles.APPEND, handles.TRUNCATE, handles.SAVE, handles.GRANT
    assert ours == tuple(table().rights.values())
    assert sum(table().rights.values()) == handles.ALL_RIGHTS
    assert table().save_flags == {"REPLACE": 1, "DURABLE": 2, "PUBLIC": 4}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pred", "i32 i32 i32 i32 i32 i32 -> i32"),
        ("wait", "i32 i32 i64 -> i32"),
        ("exit", "i32 ->"),
        ("clock_ms", "-> i64"),
        ("kv_advise", "i32 i32 i64 -> i32"),
        ("sleep", "i64 -> i32"),
    ],
)
def test_abi_signature_follows_from_the_table(name: str, kind: str) -> None:
    params, _, results = kind.partition("->")
    signature = Signature(tuple(params.split()), tuple(results.split()))
    assert allowed_imports()[LIP, name] == signature


def test_abi_imports_all_have_a_handler_with_their_parameters() -> None:
    imports = allowed_imports().items()
    for ((_, name), signature), (handler, wide) in zip(imports, host_handlers(), strict=True):
        assert wide == (signature.results == ("i64",))
        code = handler.__code__
        variable = bool(code.co_flags & 0x04)  # takes *args
        assert variable or code.co_argcount == len(signature.params) + 1, name


def test_abi_handlers_all_belong_to_a_call() -> None:
    assert set(LIP_HANDLERS) == {call.name for call in table().calls}
    assert set(WASI_HANDLERS) == set(WASI_CALLS)


def test_abi_wasi_calls_carry_no_authority() -> None:
    opening = {"path_open", "fd_read", "sock_send", "fd_pread", "path_filestat_get", "poll_oneoff"}
    assert not opening & set(WASI_CALLS)
    assert {module for module, _ in allowed_imports()} == {LIP, WASI, "env", LANGUAGE}
    assert [name for module, name in allowed_imports() if module == "env"] == ["abort"]
    assert str(ABORT) == "(i32, i32, i32, i32) -> ()"
