"""Channels: a tenant's named queues between its runs.

A channel exists while it holds an item or a call waits at it. Items go to receivers in the order
of their calls. A send into a full channel waits for CHANNEL_SEND_MS_MAX at most.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from symphony_kernel.protocol.errno import Errno, LimitError, SyscallError
from symphony_kernel.protocol.limits import (
    CHANNEL_ITEMS_MAX,
    CHANNEL_SEND_MS_MAX,
    MESSAGE_BYTES_MAX,
    NAME_BYTES_MAX,
)

from symphony_runtime.config.limits import Limits

Done = Callable[[bytes | int], None]  # an item, 0 for a send that went in, or a negative errno


@dataclass(slots=True, eq=False)
class Waiter:
    """One call that is not answered yet."""

    done: Done
    item: bytes | None  # of a send; None: a receive
    timeout: asyncio.TimerHandle | None = None
    over: bool = False


@dataclass(slots=True)
class _Channel:
    items: deque[bytes] = field(default_factory=deque)
    receivers: deque[Waiter] = field(default_factory=deque)
    senders: deque[Waiter] = field(default_factory=deque)

    @property
    def idle(self) -> bool:
        return not (self.items or self.receivers or self.senders)


class Channels:
    """All channels of all tenants."""

    def __init__(
        self,
        send_ms_max: float = CHANNEL_SEND_MS_MAX,
        limits: Limits | None = None,
        reached: Callable[[str, str], None] = lambda _tenant, _limit: None,
    ) -> None:
        """`reached` gets (tenant, limit) of a send that a limit ended."""
        self._limits, self._reached = limits or Limits(), reached
        self._loop = asyncio.get_running_loop()
        self._send_ms_max = send_ms_max
        self._tenants: dict[str, dict[str, _Channel]] = {}
        self._bytes: dict[str, int] = {}
        self._waiting: Counter[str] = Counter()  # bytes of waiting sends, by tenant

    def send(self, tenant: str, name: str, item: bytes, done: Done) -> Waiter:
        """Put an item into a channel; `done` gets 0, or -EAGAIN after the deadline.

        -EAGAIN comes at once when as many bytes wait as all the tenant's channels may hold.

        Raises SyscallError: the name or item is too long, or there are too many channels.
        """
        if len(item) > MESSAGE_BYTES_MAX:
            raise SyscallError(Errno.EFBIG, "a channel's item has at most 1 MiB")
        waiter = Waiter(done, item)
        self._channel(tenant, name).senders.append(waiter)
        self._waiting[tenant] += len(item)
        self._move_items(tenant, name)
        if self._waiting[tenant] > self._limit(tenant, "tenant_channel_bytes"):
            self._time_out(tenant, name, waiter)
        if not waiter.over:
            delay = self._send_ms_max / 1000
            waiter.timeout = self._loop.call_later(delay, self._time_out, tenant, name, waiter)
        return waiter

    def receive(self, tenant: str, name: str, done: Done) -> Waiter:
        """Take a channel's next item; `done` gets it, at once or later.

        Raises SyscallError: the name is too long, or there are too many channels.
        """
        waiter = Waiter(done, None)
        self._channel(tenant, name).receivers.append(waiter)
        self._move_items(tenant, name)
        return waiter

    def cancel_call(self, tenant: str, name: str, waiter: Waiter) -> None:
        """Cancel a call; `done` is not called any more."""
        if waiter.over:
            return
        waiter.over = True
        if waiter.timeout is not None:
            waiter.timeout.cancel()
        self._remove_waiter(tenant, name, waiter)

    def forget_tenant(self, tenant: str) -> None:
        self._tenants.pop(tenant, None)
        self._bytes.pop(tenant, None)

    def statistics(self) -> dict[str, int]:
        channels = sum(len(names) for names in self._tenants.values())
        return {"channels": channels, "bytes": sum(self._bytes.values())}

    def _channel(self, tenant: str, name: str) -> _Channel:
        if not name or len(name.encode()) > NAME_BYTES_MAX:
            raise SyscallError(Errno.ENAMETOOLONG if name else Errno.EINVAL, "a channel's name")
        names = self._tenants.setdefault(tenant, {})
        if name not in names and len(names) >= (most := self._limit(tenant, "tenant_channels")):
            raise LimitError(Errno.EDQUOT, "tenant_channels", f"tenant_channels: at most {most}")
        return names.setdefault(name, _Channel())

    def _move_items(self, tenant: str, name: str) -> None:
        """Move items from senders to the queue and on to receivers, as far as possible."""
        channel = self._tenants[tenant][name]
        while True:
            if channel.receivers and channel.items:
                item = channel.items.popleft()
                self._bytes[tenant] -= len(item)
                _finish(channel.receivers.popleft(), item)
            elif channel.senders and self._fits(tenant, channel):
                sender = channel.senders.popleft()
                assert sender.item is not None
                channel.items.append(sender.item)
                self._waiting[tenant] -= len(sender.item)
                self._bytes[tenant] = self._bytes.get(tenant, 0) + len(sender.item)
                _finish(sender, 0)
            else:
                break
        if channel.idle:
            del self._tenants[tenant][name]

    def _fits(self, tenant: str, channel: _Channel) -> bool:
        item = channel.senders[0].item
        assert item is not None
        # A waiting receiver takes the item at once, so the tenant's limit does not matter.
        return bool(channel.receivers) or (
            len(channel.items) < CHANNEL_ITEMS_MAX and self._has_room(tenant, len(item))
        )

    def _has_room(self, tenant: str, size: int) -> bool:
        return self._bytes.get(tenant, 0) + size <= self._limit(tenant, "tenant_channel_bytes")

    def _limit(self, tenant: str, limit: str) -> int:
        return self._limits.of(tenant).at_most(limit)

    def _time_out(self, tenant: str, name: str, waiter: Waiter) -> None:
        if not waiter.over:
            if not self._has_room(tenant, len(waiter.item or b"")):
                self._reached(tenant, "tenant_channel_bytes")
            _finish(waiter, -Errno.EAGAIN)
            self._remove_waiter(tenant, name, waiter)

    def _remove_waiter(self, tenant: str, name: str, waiter: Waiter) -> None:
        """Remove a waiter from its queue, wherever it stands."""
        channel = self._tenants[tenant][name]
        if waiter.item is None:
            channel.receivers.remove(waiter)
        else:
            channel.senders.remove(waiter)
            self._waiting[tenant] -= len(waiter.item)
        self._move_items(tenant, name)


def _finish(waiter: Waiter, result: bytes | int) -> None:
    waiter.over = True
    if waiter.timeout is not None:
        waiter.timeout.cancel()
    waiter.done(result)
