"""Traces: every call of the programs of a traced run, with its result.

A traced instance has a class and handlers of its own, so that other instances pay nothing. Events
leave for the gateway in bundles.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import TRACE_BUNDLE_EVENTS, TRACE_BUNDLE_MS_MAX

from symphony_runtime.worker.instance import Instance

Handler = Callable[..., int | None]
_BUNDLE_SECONDS: Final = TRACE_BUNDLE_MS_MAX / 1000
_now = time.monotonic  # also the clock of the kernel's events


class Trace:
    """Events that the gateway does not have yet; `send` takes a bundle.

    An event is [instance, call, began, ended, result, suspended], in monotonic seconds. Its result
    is None if the program ended within the call.
    """

    __slots__ = ("_events", "_flushed", "_send")

    def __init__(self, send: Callable[[list[Any]], None]) -> None:
        self._events: list[Any] = []
        self._flushed = _now()
        self._send = send

    def add_event(self, event: list[Any]) -> None:
        self._events.append(event)
        if len(self._events) >= TRACE_BUNDLE_EVENTS or event[3] - self._flushed > _BUNDLE_SECONDS:
            self.flush()

    def flush(self) -> None:
        events, self._events = self._events, []
        self._flushed = _now()
        if events:
            self._send(events)


class TracedInstance(Instance):
    """An instance of a traced run, with the run's trace."""

    __slots__ = ("_began", "_call", "_started", "suspended", "trace")
    traced = True

    def __init__(self, trace: Trace, *args: Any) -> None:
        super().__init__(*args)
        self.trace = trace
        self._call = ""  # the current call
        self._began = 0.0
        self.suspended = False  # by the current call
        self._started = _now()

    def begin_call(self, call: str) -> None:
        self._call, self._began, self.suspended = call, _now(), False

    def end_call(self, result: int | None) -> None:
        call, self._call = self._call, ""
        if call:
            self.trace.add_event([self.id, call, self._began, _now(), result, self.suspended])

    def resume(self, result: int) -> None:
        self.end_call(result)
        super().resume(result)

    def release(self) -> None:
        self.end_call(None)
        super().release()
        self.trace.add_event([self.id, "", self._started, _now(), self.end_code, False])
        if self.parent is None:
            self.trace.flush()


def traced(name: str, handler: Handler) -> Handler:
    """Return a handler that also records a traced instance's calls."""

    def call(instance: TracedInstance, *args: int) -> int | None:
        instance.begin_call(name)
        try:
            result = handler(instance, *args)
        except SyscallError as error:
            instance.end_call(-error.errno)
            raise
        if result is None:
            instance.suspended = True
        else:
            instance.end_call(result)
        return result

    return call


def new_instance(trace: Trace | None, *arguments: Any) -> Instance:
    """Return an instance made of `arguments`, traced if there is a trace."""
    return Instance(*arguments) if trace is None else TracedInstance(trace, *arguments)
