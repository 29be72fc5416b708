"""Ports: the kernel's ends of its peers' links, and what peers are told first."""

import logging
from typing import Any, Final, Protocol

from symphony_kernel.executor.models.assets import ModelAssets
from symphony_kernel.journal.hooks import HeldSession, JournalHooks
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import PAGE_TOKENS, REPLIES_BYTES_MAX, WORKER_BACKLOG_BYTES_MAX
from symphony_kernel.protocol.links import Link, OnFrame, encode
from symphony_kernel.syscalls.pending import Result

_log = logging.getLogger(__name__)
_REPLIES: Final = int(m.Replies.KIND)
_FRAME_BYTES: Final = REPLIES_BYTES_MAX


class KernelOfPort(Protocol):
    """What a port needs of the kernel behind it."""

    hooks: JournalHooks | None

    def take(self, port: "Port", message: m.Message) -> None:
        """Do what a peer says; MessageError when it may not say that."""

    def take_calls(self, port: "WorkerPort", calls: list[Any]) -> None:
        """Execute a worker's calls."""

    def calls_taken(self, count: int) -> None:
        """So many calls of a frame have been executed."""

    def detach(self, port: "Port") -> None:
        """A peer is gone."""

    def stop_with(self, error: BaseException) -> None:
        """The kernel itself has gone wrong."""


class Port:
    """One attached peer. It takes frames until its link ends or it breaks the protocol."""

    def __init__(self, kernel: KernelOfPort, name: str, link: Link) -> None:
        self._kernel = kernel
        self.name = name
        self._name = name.encode()
        self.link = link
        self.closed = False

    def send(self, message: m.Message) -> None:
        """Send one message."""
        self.link.send(m.encode(message))

    def on_frame(self, frame: list[Any]) -> None:
        """Take a frame; a peer that breaks the protocol is cut off."""
        if self.closed:
            return
        hooks = self._kernel.hooks
        if hooks is None:
            self._take(frame)
            return
        link = self.link
        came = link.frame if isinstance(link, HeldSession) else b""
        hooks.frame(self._name, came or encode(frame))
        hooks.inside += 1
        self._take(frame)
        hooks.inside -= 1

    def _take(self, frame: list[Any]) -> None:
        try:
            self._kernel.take(self, m.decode(frame))
        except m.MessageError as error:
            self.cut_off(str(error))
        except Exception as error:  # ours: whatever a peer may send is a MessageError or a reply
            self._kernel.stop_with(error)

    def cut_off(self, reason: str) -> None:
        """End the link with a peer that cannot be talked to."""
        _log.error("cutting off %s: %s", self.name, reason)
        self.link.abort()
        self.on_closed()

    def on_closed(self) -> None:
        """The link has ended: so have the instances that lived behind it."""
        if self.closed:
            return
        self.closed = True
        try:
            self._kernel.detach(self)
        except Exception as error:  # ours
            self._kernel.stop_with(error)


class WorkerPort(Port):
    """A worker's link, and the replies that will leave in its next frame."""

    def __init__(self, kernel: KernelOfPort, name: str, link: Link) -> None:
        super().__init__(kernel, name, link)
        self.replies: list[tuple[int, int, Result]] = []
        self._calls = 0  # of the last frame

    def on_frame(self, frame: list[Any]) -> None:
        """Take a frame; behind calls look what there is to compute."""
        super().on_frame(frame)
        calls, self._calls = self._calls, 0
        if calls:
            self._kernel.calls_taken(calls)

    def _take(self, frame: list[Any]) -> None:
        # Nearly all are calls, which need no message made of them.
        if len(frame) != 2 or frame[0] != m.Calls.KIND or type(frame[1]) is not list:
            super()._take(frame)
            return
        try:
            self._kernel.take_calls(self, frame[1])
            self._calls = len(frame[1])
        except Exception as error:  # ours
            self._kernel.stop_with(error)

    def flush(self) -> None:
        """Send the replies that have gathered: one frame, or a few when they are large."""
        replies, self.replies = self.replies, []
        start, size = 0, 0
        for index, (_, _, result) in enumerate(replies):
            if type(result) is bytes:
                size += len(result)
                if size > _FRAME_BYTES and index > start:
                    self.send(m.Replies(replies[start:index]))
                    start, size = index, len(result)
        # The step's frame: it need not wait for the loop's next turn.
        self.link.send([_REPLIES, replies[start:] if start else replies], now=True)
        if self.link.backlog > WORKER_BACKLOG_BYTES_MAX:
            self.cut_off(f"{self.link.backlog} bytes of answers lie unread")


class GatewayPort(Port):
    """The gateway's link; it is believed."""


def after_hello(port: Port) -> OnFrame:
    """Return a receiver that lets a first `Hello` pass: it proves nothing in one process."""
    first = True

    def on_frame(frame: list[Any]) -> None:
        nonlocal first
        if not (first and frame[0] == m.Hello.KIND):
            port.on_frame(frame)
        first = False

    return on_frame


def describe(assets: ModelAssets) -> dict[str, Any]:
    """Return what a `Welcome` says of the model."""
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
        },
        "tokenizer": assets.tokenizer_json,
        "chat_template": assets.chat_template,
        "special": assets.special,
    }
