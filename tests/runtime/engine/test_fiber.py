"""The private C bindings: what the worker relies on, pinned release by release."""

import gc
import sys
import time
from collections.abc import Iterator

import pytest
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import GUEST_STACK_BYTES
from symphony_runtime.abi import Signature
from symphony_runtime.engine.fiber import (
    CALLED,
    ENDED,
    PREEMPTED,
    End,
    EndKind,
    Fiber,
    FiberHost,
    HostFault,
    new_engine,
)
from wasmtime import Module, wat2wasm

from tests.support.timing import check_median

MIB = 1 << 20
SLICE_MS_MAX = 1.5  # a tick of 1 ms, and what it takes until the guest has stopped
IMPORTS = {
    ("lip", "first"): Signature(("i32", "i64", "i32"), ("i32",)),
    ("lip", "wide"): Signature((), ("i64",)),
    ("lip", "void"): Signature(("i32",), ()),
}
HEAD = """
(import "lip" "first" (func $first (param i32 i64 i32) (result i32)))
(import "lip" "wide" (func $wide (result i64)))
(import "lip" "void" (func $void (param i32)))
(memory (export "memory") 1)
"""


@pytest.fixture
def host() -> Iterator[FiberHost]:
    host = FiberHost(IMPORTS)
    yield host
    host.close()


def fiber(host: FiberHost, body: str, *parts: str, memory: int = MIB) -> Fiber:
    source = f'(module {HEAD} (func (export "lip_main") (result i32) {body}) {" ".join(parts)})'
    artefact = bytes(Module(new_engine(), wat2wasm(source)).serialize())
    return Fiber(host, host.load(artefact), "lip_main", memory)


def ended(guest: Fiber) -> End:
    """Poll to the end, close the fiber, and return its end."""
    assert until_stop(guest) == ENDED
    end = guest.end
    assert end is not None
    guest.close()
    return end


def until_stop(guest: Fiber) -> int:
    """Poll past preemptions, which any poll may meet."""
    while (state := guest.poll()) == PREEMPTED:
        pass
    return state


def test_fiber_call_leaves_its_arguments_and_takes_a_result(host: FiberHost) -> None:
    guest = fiber(host, "(call $first (i32.const -1) (i64.const -2) (i32.const 7))")
    assert until_stop(guest) == CALLED
    assert (guest.call, guest.args) == (0, (0xFFFFFFFF, -2, 7))
    guest.resume(-38)
    assert until_stop(guest) == ENDED
    assert guest.end is not None
    assert (guest.end.kind, guest.end.code) == (EndKind.RETURNED, -38)
    assert guest.close() == 65_536


def test_fiber_calls_may_have_wide_results_or_none(host: FiberHost) -> None:
    guest = fiber(
        host, "(call $void (i32.const 5)) (i32.wrap_i64 (i64.shr_u (call $wide) (i64.const 40)))"
    )
    assert until_stop(guest) == CALLED
    assert (guest.call, guest.args) == (2, (5,))
    guest.resume(0)
    assert until_stop(guest) == CALLED
    assert (guest.call, guest.args) == (1, ())
    guest.resume(3 << 40, wide=True)
    assert ended(guest).code == 3


def test_fibers_interleave(host: FiberHost) -> None:
    guests = [
        fiber(host, f"(drop (call $wide)) (drop (call $wide)) (i32.const {n})") for n in range(50)
    ]
    for _ in range(2):
        assert [until_stop(guest) for guest in guests] == [CALLED] * 50
        for guest in reversed(guests):
            guest.resume(0, wide=True)
    assert [ended(guest).code for guest in reversed(guests)] == list(reversed(range(50)))


def test_fiber_calls_from_any_depth_get_their_own_results(host: FiberHost) -> None:
    deep = """(func $deep (param i32) (result i32)
        (if (i32.eqz (local.get 0)) (then (return (i32.const 0))))
        (call $void (i32.mul (local.get 0) (i32.const 10)))
        (i32.add (call $first (local.get 0) (i64.const 1) (i32.const 2))
                 (i32.add (call $deep (i32.sub (local.get 0) (i32.const 1)))
                          (i32.wrap_i64 (call $wide)))))"""
    guest = fiber(host, "(call $deep (i32.const 30))", deep)
    made = []
    while until_stop(guest) == CALLED:
        made.append((guest.call, guest.args))
        if guest.call == 0:
            guest.resume(guest.args[0] * 1_000)
        elif guest.call == 1:
            guest.resume(1, wide=True)
        else:
            guest.resume_void()
    down = [call for n in range(30, 0, -1) for call in ((2, (10 * n,)), (0, (n, 1, 2)))]
    assert made == down + [(1, ())] * 30
    assert guest.end is not None
    assert guest.end.code == 1_000 * sum(range(31)) + 30
    guest.close()


def test_fiber_memory_is_read_and_written_while_a_call_is_pending(host: FiberHost) -> None:
    guest = fiber(
        host,
        "(i32.store (i32.const 8) (i32.const 42)) (call $void (i32.const 8)) "
        "(i32.load (i32.const 65532))",
    )
    assert until_stop(guest) == CALLED
    assert guest.read(8, 4) == b"\x2a\0\0\0"
    guest.write(65_532, b"\x07\0\0\0")
    guest.resume(0)
    assert ended(guest).code == 7


@pytest.mark.parametrize(
    ("pointer", "length"),
    [
        (65_536, 1),
        (65_533, 4),
        (0, 65_537),
        (0xFFFFFFFF, 1),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (65_537, 0),
        (2**64 - 1, 1),
        (1, 2**64 - 1),
        (2**64 - 1, 2**64 - 1),
    ],
)
def test_fiber_access_outside_memory_is_efault(host: FiberHost, pointer: int, length: int) -> None:
    guest = fiber(host, "(call $void (i32.const 0)) (i32.const 0)")
    until_stop(guest)
    with pytest.raises(SyscallError, match="EFAULT"):
        guest.check(pointer, length)
    with pytest.raises(SyscallError):
        guest.read(pointer, length)
    with pytest.raises(SyscallError):
        guest.write(pointer, bytes(min(length, 65_537)))
    guest.close()


def test_fiber_access_at_the_edges_of_memory_works(host: FiberHost) -> None:
    guest = fiber(host, "(call $void (i32.const 0)) (i32.const 0)")
    until_stop(guest)
    assert guest.read(65_536, 0) == b""
    assert guest.read(0, 65_536) == bytes(65_536)
    guest.close()


def test_fiber_memory_grows_in_place_up_to_its_limit(host: FiberHost) -> None:
    grow = "(call $void (memory.grow (i32.const 3)))"
    guest = fiber(host, f"{grow} {grow} {grow} (i32.const 0)", memory=5 * 65_536)
    seen = []
    while until_stop(guest) == CALLED:
        seen.append((guest.args, guest.size, guest.base))
        guest.resume(0)
    base = seen[0][2]
    assert seen == [
        ((1,), 4 * 65_536, base),
        ((0xFFFFFFFF,), 4 * 65_536, base),
        ((0xFFFFFFFF,), 4 * 65_536, base),
    ]
    assert guest.close() == 4 * 65_536


def test_fiber_with_memory_over_the_limit_is_refused(host: FiberHost) -> None:
    guest = fiber(host, "(i32.const 0)", memory=0)
    assert ended(guest).kind is EndKind.REFUSED


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("unreachable", "unreachable instruction"),
        ("(i32.load (i32.const -4))", "out-of-bounds memory access"),
        ("(i32.div_s (i32.const 1) (i32.const 0))", "integer division by zero"),
        ("(i32.div_s (i32.const -2147483648) (i32.const -1))", "integer overflow"),
        ("(i32.trunc_f32_s (f32.const nan))", "conversion of a float"),
        ("(call_indirect (result i32) (i32.const 0))", "indirect call to a null function"),
        ("(call_indirect (result i32) (i32.const 9))", "out-of-bounds table access"),
        ("(call_indirect (result i32) (i32.const 1))", "indirect call to a function of another"),
    ],
)
def test_fiber_trap_has_a_reason_in_words(host: FiberHost, body: str, words: str) -> None:
    guest = fiber(host, body, "(table 2 2 funcref) (elem (i32.const 1) $f) (func $f)")
    end = ended(guest)
    assert end.kind is EndKind.TRAPPED
    assert words in end.reason


RECURSION = (
    "(func $down (param i32) (result i32) (i32.add (i32.const 1) (call $down (i32.const 0))))"
)


def test_fiber_deep_recursion_is_a_stack_overflow(host: FiberHost) -> None:
    for _ in range(3):
        guest = fiber(host, "(call $down (i32.const 0))", RECURSION)
        assert ended(guest).reason.startswith("stack overflow")


def test_fiber_call_at_the_end_of_the_stack_has_room(host: FiberHost) -> None:
    """Each level makes a call: some is made with hardly any guest stack left."""
    down = "(func $down (call $void (i32.const 0)) (call $down) (call $void (i32.const 1)))"
    guest = fiber(host, "(call $down) (i32.const 0)", down)
    depth = 0
    while until_stop(guest) == CALLED:
        depth += 1
        guest.resume(0)
    assert guest.end is not None
    assert guest.end.reason.startswith("stack overflow")
    assert depth > GUEST_STACK_BYTES // 256
    guest.close()


@pytest.mark.timing
async def test_fiber_that_computes_is_preempted_after_a_millisecond(host: FiberHost) -> None:
    hog = fiber(host, "(loop $l (br $l)) (i32.const 0)")

    async def computed() -> float:
        began = time.thread_time()  # what the guest had of a processor, however busy that is
        assert hog.poll() == PREEMPTED
        return 1000 * (time.thread_time() - began)

    await check_median(computed, below=SLICE_MS_MAX, count=101)
    hog.close()


def test_fiber_that_computes_is_preempted_and_others_run(host: FiberHost) -> None:
    hog = fiber(host, "(loop $l (br $l)) (i32.const 0)")
    neighbour = fiber(host, "(drop (call $wide)) (i32.const 3)")
    for _ in range(20):
        assert hog.poll() == PREEMPTED
    assert until_stop(neighbour) == CALLED
    neighbour.resume(0, wide=True)
    assert until_stop(neighbour) == ENDED
    hog.close()
    neighbour.close()


@pytest.mark.parametrize("when", ["new", "preempted", "in a call", "resumed", "ended"])
def test_fiber_can_be_closed_in_any_state(host: FiberHost, when: str) -> None:
    body = "(loop $l (br $l))" if when == "preempted" else "(call $void (i32.const 0))"
    guest = fiber(host, f"{body} (i32.const 0)")
    if when == "preempted":
        assert guest.poll() == PREEMPTED
    elif when != "new":
        assert until_stop(guest) == CALLED
    if when in ("resumed", "ended"):
        guest.resume(0)
    if when == "ended":
        assert until_stop(guest) == ENDED
    guest.close()
    assert guest.close() == 0  # closing again does nothing


def test_fibers_that_are_closed_leave_nothing(host: FiberHost) -> None:
    def held() -> tuple[int, int, int]:
        gc.collect()
        of_host, of_class = map(sys.getrefcount, (host.hostcalls, Fiber))
        return of_host, of_class, sum(issubclass(type(each), Fiber) for each in gc.get_objects())

    def one_of_each() -> None:
        pending = fiber(host, "(call $void (i32.const 0)) (i32.const 0)")
        ended = fiber(host, "(i32.const 0)")
        trapped = fiber(host, "(unreachable)")
        new = fiber(host, "(i32.const 0)")
        assert [until_stop(each) for each in (pending, ended, trapped)] == [CALLED, ENDED, ENDED]
        for each in (pending, ended, trapped, new):
            each.close()
            host.unload(each.program)

    one_of_each()
    before = held()
    for _ in range(3):
        one_of_each()
    assert held() == before


def test_fiber_whose_end_was_interrupted_is_not_polled_again(
    host: FiberHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Fiber) -> bool:
        raise KeyboardInterrupt

    guest = fiber(host, "(i32.const 0)")
    with monkeypatch.context() as patched:
        patched.setattr(Fiber, "on_future_end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            until_stop(guest)
    with pytest.raises(RuntimeError):
        guest.poll()
    guest.close()


def test_fiber_start_function_and_initialize_run_first_and_may_call(host: FiberHost) -> None:
    guest = fiber(
        host,
        "(call $void (i32.const 3)) (i32.const 0)",
        "(func $begin (call $void (i32.const 1))) (start $begin)",
        '(func (export "_initialize") (call $void (i32.const 2)))',
    )
    calls = []
    while until_stop(guest) == CALLED:
        calls.append(guest.args[0])
        assert guest.read(0, 4) == bytes(4)
        guest.resume(0)
    assert calls == [1, 2, 3]
    guest.close()


def test_fiber_start_function_that_loops_is_preempted(host: FiberHost) -> None:
    guest = fiber(host, "(i32.const 0)", "(func $begin (loop $l (br $l))) (start $begin)")
    assert [guest.poll() for _ in range(3)] == [PREEMPTED] * 3
    guest.close()


def test_fiber_of_a_foreign_artefact_or_entry_is_refused(host: FiberHost) -> None:
    with pytest.raises(HostFault):
        host.load(b"not an artefact")
    source = f'(module {HEAD} (func (export "_start")))'
    program = host.load(bytes(Module(new_engine(), wat2wasm(source)).serialize()))
    assert (program.entries, program.default_entry) == ({"_start": 0}, "_start")
    with pytest.raises(KeyError):
        Fiber(host, program, "lip_main", MIB)
    host.unload(program)


def test_ticker_sleeps_while_no_fiber_runs(host: FiberHost) -> None:
    guest = fiber(host, "(drop (call $wide)) (loop $l (br $l)) (i32.const 0)")
    until_stop(guest)
    deadline = time.monotonic() + 10
    while host.ticker.board.armed:  # it is not told that nothing runs any more: it finds out
        assert time.monotonic() < deadline
        time.sleep(0.005)
    guest.resume(0, wide=True)
    assert guest.poll() == PREEMPTED  # and is woken by a guest that runs
    guest.close()
