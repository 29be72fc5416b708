"""Queues of operations: each starts in its turn on every file, and never before."""

from hypothesis import given
from hypothesis import strategies as st
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.file_queue import FileOperation, drop, finish, submit

from tests.support.kernel.page_device import make_account, make_kvfs


class Recorded(FileOperation):
    def __init__(self, files: tuple[KVFile, ...], number: int, at_once: bool) -> None:
        super().__init__(files)
        self.number = number
        self.at_once = at_once
        self.left = False

    def start(self) -> bool:
        return self.at_once

    def finished(self) -> None:
        assert not self.left
        self.left = True


def files(count: int) -> list[KVFile]:
    kvfs = make_kvfs(4)
    account = make_account(kvfs)
    return [kvfs.create("t", account) for _ in range(count)]


def test_operation_on_idle_files_starts_at_once() -> None:
    (file,) = files(1)
    operation = Recorded((file,), 0, at_once=True)
    submit(operation)
    assert operation.left
    assert not file.queue


def test_thousands_of_waiting_operations_start_without_recursion() -> None:
    (file,) = files(1)
    first = Recorded((file,), 0, at_once=False)
    submit(first)
    others = [Recorded((file,), n, at_once=True) for n in range(5000)]
    for other in others:
        submit(other)
    assert not any(other.started for other in others)
    finish(first)
    assert all(other.left for other in others)


def test_dropped_operation_lets_the_next_start() -> None:
    left, right = files(2)
    running = Recorded((left,), 0, at_once=False)
    both = Recorded((left, right), 1, at_once=True)
    behind = Recorded((right,), 2, at_once=True)
    for operation in (running, both, behind):
        submit(operation)
    assert not behind.started
    drop(both)
    assert both.left
    assert behind.left
    assert not running.left


@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(0, 3), min_size=1, max_size=2), st.booleans(), st.integers(0, 9)
        ),
        max_size=30,
    )
)
def test_operations_of_each_file_run_in_order(plan: list[tuple[set[int], bool, int]]) -> None:
    shared = files(4)
    operations: list[Recorded] = []
    dropped: set[int] = set()

    def in_flight() -> list[Recorded]:
        return [o for o in operations if o.started and not o.left]

    def check() -> None:
        for index, operation in enumerate(operations):
            before = [o for o in operations[:index] if set(o.files) & set(operation.files)]
            if operation.started:
                assert all(o.left for o in before)
            elif not operation.left:
                assert any(not o.left for o in before), "it could have started"

    for number, (chosen, at_once, then) in enumerate(plan):
        operation = Recorded(tuple(shared[i] for i in sorted(chosen)), number, at_once)
        operations.append(operation)
        submit(operation)
        check()
        waiting = [o for o in operations if not o.started and not o.left]
        if then < 3 and in_flight():
            finish(in_flight()[0])
        elif then < 5 and waiting:
            dropped.add(waiting[0].number)
            drop(waiting[0])
        check()
    while in_flight():
        finish(in_flight()[0])
    assert all(o.left and (o.started or o.number in dropped) for o in operations)
    assert not any(file.queue for file in shared)
