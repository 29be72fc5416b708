"""Ports, the kernel's ends of its peers' links, and the content of `Welcome`."""

import logging
from typing import Any, Final, Protocol

from symphony_kernel.executor.models.assets import ModelAssets
from symphony_kernel.journal.hooks import HeldSession, JournalHooks
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import PAGE_TOKENS, REPLIES_BYTES_MAX, WORKER_BACKLOG_BYTES_MAX
from symphony_kernel.protocol.links import Link, encode
from symphony_kernel.syscalls.pending import Result

_log = logging.getLogger(__name__)
_REPLIES: Final = int(m.Replies.KIND)
_FRAME_BYTES: Final = REPLIES_BYTES_MAX


class PortKernel(Protocol):
    """The part of `Kernel` that a port needs."""

    hooks: JournalHooks | None

    def handle_message(self, port: "Port", message: m.Message) -> None: ...
    def execute_calls(self, port: "WorkerPort", calls: list[Any]) -> None: ...
    def calls_executed(self, count: int) -> None: ...
    def detach(self, port: "Port") -> None: ...
    def stop_with(self, error: BaseException) -> None: ...


class Port:
    """One attached peer, until its link ends or it breaks the protocol.

    The gateway's, which the kernel trusts, is a `Port`; workers' are `WorkerPort`s.
    """

    def __init__(self, kernel: PortKernel, name: str, link: Link) -> None:
        self._kernel = kernel
        self.name = name
        self._name = name.encode()
        self.link = link
        self.closed = False

    def send(self, message: m.Message) -> None:
        self.link.send(m.encode(message))

    def on_frame(self, frame: list[Any]) -> None:
        """Handle a frame. A peer that breaks the protocol is cut off."""
        if self.closed:
            return
        hooks = self._kernel.hooks
        if hooks is None:
            self._handle(frame)
            return
        link = self.link
        received = link.body if isinstance(link, HeldSession) else b""
        hooks.record_frame(self._name, received or encode(frame))
        hooks.depth += 1
        self._handle(frame)
        hooks.depth -= 1

    def _handle(self, frame: list[Any]) -> None:
        try:
            self._kernel.handle_message(self, m.decode(frame))
        except m.MessageError as error:
            self.cut_off(str(error))
        except Exception as error:  # the kernel's fault: a peer's faults are MessageErrors
            self._kernel.stop_with(error)

    def cut_off(self, reason: str) -> None:
        """End the link of a peer that breaks the protocol."""
        _log.error("cutting off %s: %s", self.name, reason)
        self.link.abort()
        self.on_closed()

    def on_closed(self) -> None:
        """Detach the peer: its link has ended."""
        if self.closed:
            return
        self.closed = True
        try:
            self._kernel.detach(self)
        except Exception as error:  # the kernel's fault
            self._kernel.stop_with(error)


class WorkerPort(Port):
    """A worker's link, and the replies of its next frame."""

    def __init__(self, kernel: PortKernel, name: str, link: Link) -> None:
        super().__init__(kernel, name, link)
        self.replies: list[tuple[int, int, Result]] = []
        self._calls = 0  # of the last frame

    def on_frame(self, frame: list[Any]) -> None:
        super().on_frame(frame)
        calls, self._calls = self._calls, 0
        if calls:
            self._kernel.calls_executed(calls)

    def _handle(self, frame: list[Any]) -> None:
        # Nearly all frames are calls: they are executed without a message object.
        if len(frame) != 2 or frame[0] != m.Calls.KIND or type(frame[1]) is not list:
            super()._handle(frame)
            return
        try:
            self._kernel.execute_calls(self, frame[1])
            self._calls = len(frame[1])
        except Exception as error:  # the kernel's fault
            self._kernel.stop_with(error)

    def flush(self) -> None:
        """Send the collected replies: in one frame, or in several when they are large."""
        replies, self.replies = self.replies, []
        start, size = 0, 0
        for index, (_, _, result) in enumerate(replies):
            if type(result) is bytes:
                size += len(result)
                if size > _FRAME_BYTES and index > start:
                    self.send(m.Replies(replies[start:index]))
                    start, size = index, len(result)
        # `now`: a step's replies need not wait for the loop's next turn.
        self.link.send([_REPLIES, replies[start:] if start else replies], now=True)
        if self.link.backlog > WORKER_BACKLOG_BYTES_MAX:
            self.cut_off(f"it has {self.link.backlog} bytes of unread replies")


def describe(assets: ModelAssets) -> dict[str, Any]:
    """Return `Welcome`'s description of the model."""
    model = assets.model
    return {
        "model": {
            "name": model.name,
            "vocab_size": model.vocab_size,
            "eos": list(model.eos),
            "bos": model.bos,
            "max_context": model.max_context,
            "page_size": PAGE_TOKENS,
            "dtype": model.dtype,
            "hidden_size": model.hidden_size,
        },
        "tokenizer": assets.tokenizer_json,
        "chat_template": assets.chat_template,
        "special": assets.special,
        "embedding": assets.embedding,
    }
