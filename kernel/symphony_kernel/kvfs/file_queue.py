"""Order: calls on one file take effect in the order in which they were made.

Every file has a queue of operations. An operation starts when it is the first in the queue of each
file that it touches, and leaves when it has finished: at once for all but a pred, which stays until
its last token is computed. Operations enter all their queues at once and in one order, so that they
never wait for each other in a circle.
"""

from collections import OrderedDict
from typing import TypeAlias

from mypy_extensions import mypyc_attr

from symphony_kernel.kvfs.file import KVFile


@mypyc_attr(allow_interpreted_subclasses=True)
class FileOperation:
    """One call on one or two files; subclasses define `start`, and `submit` orders it."""

    __slots__ = ("_waits", "files", "started")

    def __init__(self, files: tuple[KVFile, ...]) -> None:
        self.files = files  # distinct; the operation holds a reference to each
        self.started = False
        self._waits = 0  # queues in which it is not the first

    def start(self) -> bool:
        """Do it; return whether it has finished, else `finish` follows. Never raises."""
        raise AssertionError(f"{type(self).__name__} does not define start()")

    def finished(self) -> None:
        """Release what it holds; called once, after it has left its queues."""


FileQueue: TypeAlias = OrderedDict[FileOperation, None]  # in order; any operation may leave


def submit(operation: FileOperation) -> None:
    """Start an operation, or queue it behind earlier ones."""
    files = operation.files
    if len(files) == 1 and files[0].queue is not None and not files[0].queue:  # the common case
        files[0].queue[operation] = None
        operation.started = True
        if operation.start():
            _run(_leave(operation))
        return
    waits = 0
    for file in files:
        queue = file.queue
        if queue is None:
            queue = file.queue = OrderedDict()
        if queue:
            waits += 1
        queue[operation] = None
    operation._waits = waits  # noqa: SLF001 - this module is the queue
    if not waits:
        _run([operation])


def finish(operation: FileOperation) -> None:
    """Take a started operation out of its queues, and start those that waited for it."""
    assert operation.started
    files = operation.files
    if len(files) == 1 and (queue := files[0].queue) and len(queue) == 1:  # none waits behind it
        del queue[operation]
        operation.finished()
    elif ready := _leave(operation):
        _run(ready)


def drop(operation: FileOperation) -> None:
    """Take an operation that has not started out of its queues."""
    assert not operation.started
    _run(_leave(operation))


def _run(ready: list[FileOperation]) -> None:
    # A loop, not recursion: thousands of operations may wait for one.
    while ready:
        operation = ready.pop(0)
        operation.started = True
        if operation.start():
            ready.extend(_leave(operation))


def _leave(operation: FileOperation) -> list[FileOperation]:
    """Take it out of its queues; return the operations that can start now."""
    ready: list[FileOperation] = []
    for file in operation.files:
        queue = file.queue
        assert queue is not None
        first = next(iter(queue)) is operation
        del queue[operation]
        if first and queue:
            following = next(iter(queue))
            following._waits -= 1  # noqa: SLF001
            if not following._waits:  # noqa: SLF001
                ready.append(following)
    operation.finished()
    return ready
