"""Traces: each call of the programs of a run that asked for it, from its entry to its result.

A traced instance is of a class of its own and has its calls made through handlers of its own, so
that the others pay nothing. Events leave for the gateway in bundles.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import TRACE_BUNDLE_EVENTS, TRACE_BUNDLE_MS_MAX

from symphony_runtime.worker.instance import Instance

Handler = Callable[..., int | None]
_BUNDLE_SECONDS: Final = TRACE_BUNDLE_MS_MAX / 1000
_now = time.monotonic  # the clock of the kernel's events, too


class Trace:
    """What a run's instances did and the gateway has not been told; `tell` takes a bundle.

    An event is [instance, call, began, ended, result, suspended], in monotonic seconds. Without a
    result (None) the program ended within the call.
    """

    __slots__ = ("_events", "_left", "_tell")

    def __init__(self, tell: Callable[[list[Any]], None]) -> None:
        self._events: list[Any] = []
        self._left = _now()
        self._tell = tell

    def add(self, event: list[Any]) -> None:
        """Keep an event until its bundle leaves."""
        self._events.append(event)
        if len(self._events) >= TRACE_BUNDLE_EVENTS or event[3] - self._left > _BUNDLE_SECONDS:
            self.leave()

    def leave(self) -> None:
        """Tell what there is."""
        events, self._events = self._events, []
        self._left = _now()
        if events:
            self._tell(events)


class TracedInstance(Instance):
    """An instance of a traced run; `trace` is its run's."""

    __slots__ = ("_began", "_call", "_suspended", "_was_born", "trace")
    traced = True

    def __init__(self, trace: Trace, *args: Any) -> None:
        super().__init__(*args)
        self.trace = trace
        self._call = ""  # the call that is under way
        self._began = 0.0
        self._suspended = False
        self._was_born = _now()

    def enter(self, call: str) -> None:
        """The program makes a call."""
        self._call, self._began, self._suspended = call, _now(), False

    def suspended(self) -> None:
        """The call has not returned at once."""
        self._suspended = True

    def leave(self, result: int | None) -> None:
        """The call returns."""
        call, self._call = self._call, ""
        if call:
            event = [self.id, call, self._began, _now(), result, self._suspended]
            self.trace.add(event)

    def resume(self, result: int) -> None:
        """Give the pending call's result and let the guest run."""
        self.leave(result)
        super().resume(result)

    def release(self) -> None:
        """Give everything back, and tell how long it lived."""
        self.leave(None)
        super().release()
        self.trace.add([self.id, "", self._was_born, _now(), self.end_code, False])
        if self.parent is None:
            self.trace.leave()


def traced(name: str, handler: Handler) -> Handler:
    """Return a handler that does the same for a traced instance, and tells."""

    def call(instance: TracedInstance, *args: int) -> int | None:
        instance.enter(name)
        try:
            result = handler(instance, *args)
        except SyscallError as error:
            instance.leave(-error.errno)
            raise
        if result is None:
            instance.suspended()
        else:
            instance.leave(result)
        return result

    return call


def new_instance(trace: Trace | None, *what: Any) -> Instance:
    """Return an instance made of `what`; its calls are traced if there is a trace."""
    return Instance(*what) if trace is None else TracedInstance(trace, *what)
