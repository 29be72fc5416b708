import asyncio
from collections.abc import Callable

import pytest
from symphony_kernel.protocol.errno import Errno, LimitError, SyscallError
from symphony_kernel.protocol.limits import (
    CHANNEL_ITEMS_MAX,
    MESSAGE_BYTES_MAX,
    NAME_BYTES_MAX,
    TENANT_CHANNEL_BYTES_MAX,
    TENANT_CHANNELS_MAX,
)
from symphony_runtime.config.limits import Limits, parse_limits
from symphony_runtime.gateway.runs.channels import Channels

Heard = list[bytes | int]


def with_channels(scenario: Callable[[Channels, Heard], None], send_ms: float = 5000) -> None:
    async def main() -> None:
        scenario(Channels(send_ms), [])

    asyncio.run(main())


def test_items_come_in_order_to_receivers_in_order() -> None:
    def scenario(channels: Channels, heard: Heard) -> None:
        for item in (b"1", b"2"):
            channels.send("t", "c", item, heard.append)
        assert heard == [0, 0]
        first: Heard = []
        second: Heard = []
        channels.receive("t", "c", first.append)
        channels.receive("t", "c", first.append)
        channels.receive("t", "c", second.append)
        channels.receive("t", "c", first.append)
        assert first == [b"1", b"2"]
        channels.send("t", "c", b"3", heard.append)
        channels.send("t", "c", b"4", heard.append)
        assert (second, first) == ([b"3"], [b"1", b"2", b"4"])
        assert channels.statistics() == {"channels": 0, "bytes": 0}

    with_channels(scenario)


def test_tenants_do_not_meet() -> None:
    def scenario(channels: Channels, heard: Heard) -> None:
        channels.send("one", "c", b"secret", lambda _: None)
        channels.receive("two", "c", heard.append)
        assert heard == []

    with_channels(scenario)


async def test_a_send_into_a_full_channel_waits_and_gives_up() -> None:
    channels = Channels(send_ms_max=20)
    heard: Heard = []
    for _ in range(CHANNEL_ITEMS_MAX):
        channels.send("t", "c", b"x", heard.append)
    assert heard == [0] * CHANNEL_ITEMS_MAX
    late: Heard = []
    channels.send("t", "c", b"late", late.append)
    channels.send("t", "c", b"too late", late.append)
    taken: Heard = []
    channels.receive("t", "c", taken.append)
    assert (late, taken) == ([0], [b"x"])
    await asyncio.sleep(0.05)
    assert late == [0, -Errno.EAGAIN]
    for _ in range(CHANNEL_ITEMS_MAX):
        channels.receive("t", "c", taken.append)
    assert taken[-1] == b"late"
    assert channels.statistics() == {"channels": 0, "bytes": 0}


def test_a_dropped_call_takes_and_gives_nothing() -> None:
    def scenario(channels: Channels, heard: Heard) -> None:
        dropped: Heard = []
        waiter = channels.receive("t", "c", dropped.append)
        channels.cancel_call("t", "c", waiter)
        assert channels.statistics()["channels"] == 0
        waiter = channels.receive("t", "c", dropped.append)
        channels.receive("t", "c", heard.append)
        channels.cancel_call("t", "c", waiter)
        channels.send("t", "c", b"1", lambda _: None)
        assert (dropped, heard) == ([], [b"1"])

    with_channels(scenario)


def test_who_has_left_stands_in_no_line() -> None:
    """However often one asks and gives up behind another that stays."""

    def scenario(channels: Channels, heard: Heard) -> None:
        first = channels.receive("t", "c", heard.append)
        for _ in range(100):
            channels.cancel_call("t", "c", channels.receive("t", "c", heard.append))
        channels.cancel_call("t", "d", channels.receive("t", "d", heard.append))
        line = channels._tenants["t"]["c"].receivers
        assert list(line) == [first]
        channels.cancel_call("t", "c", first)
        channels.cancel_call("t", "c", first)
        for _ in range(CHANNEL_ITEMS_MAX):
            channels.send("t", "c", b"x", lambda _: None)
        stays = channels.send("t", "c", b"stays", heard.append)
        for _ in range(100):
            channels.cancel_call("t", "c", channels.send("t", "c", bytes(1000), heard.append))
        assert list(channels._tenants["t"]["c"].senders) == [stays]
        assert channels._waiting["t"] == len(b"stays")
        assert heard == []

    with_channels(scenario)


def test_only_so_many_bytes_wait() -> None:
    def scenario(channels: Channels, heard: Heard) -> None:
        for _ in range(CHANNEL_ITEMS_MAX):
            channels.send("t", "c", b"", lambda _: None)
        fit = TENANT_CHANNEL_BYTES_MAX // MESSAGE_BYTES_MAX
        waiting = [channels.send("t", "c", bytes(MESSAGE_BYTES_MAX), heard.append)
                   for _ in range(fit)]  # fmt: skip
        assert heard == []
        channels.send("t", "c", b"x", heard.append)
        assert heard == [-Errno.EAGAIN]
        channels.cancel_call("t", "c", waiting[3])
        channels.send("t", "c", b"x", heard.append)
        assert heard == [-Errno.EAGAIN]
        channels.receive("t", "c", lambda _: None)  # one goes in
        assert heard == [-Errno.EAGAIN, 0]

    with_channels(scenario)


def test_limits() -> None:
    def scenario(channels: Channels, heard: Heard) -> None:
        for name, errno in (("", Errno.EINVAL), ("é" * NAME_BYTES_MAX, Errno.ENAMETOOLONG)):
            with pytest.raises(SyscallError) as refused:
                channels.receive("t", name, heard.append)
            assert refused.value.errno == errno
        with pytest.raises(SyscallError) as refused:
            channels.send("t", "c", bytes(MESSAGE_BYTES_MAX + 1), heard.append)
        assert refused.value.errno == Errno.EFBIG
        fit = TENANT_CHANNEL_BYTES_MAX // MESSAGE_BYTES_MAX
        for number in range(fit + 1):
            channels.send("t", f"big{number}", bytes(MESSAGE_BYTES_MAX), heard.append)
        assert heard == [0] * fit
        for number in range(fit + 1, TENANT_CHANNELS_MAX):
            channels.receive("t", f"small{number}", heard.append)
        with pytest.raises(SyscallError) as refused:
            channels.receive("t", "one more", heard.append)
        assert refused.value.errno == Errno.EDQUOT
        channels.receive("other", "one more", heard.append)

    with_channels(scenario)


async def test_a_tenant_may_have_fewer_and_hears_by_which_limit() -> None:
    reached: list[tuple[str, str]] = []
    limits = Limits(parse_limits({"tenant_channels": 1, "tenant_channel_bytes": 5}))
    channels = Channels(20, limits, lambda *what: reached.append(what))
    heard: Heard = []
    channels.send("t", "c", b"12345", heard.append)
    channels.send("t", "c", b"6", heard.append)
    with pytest.raises(LimitError) as refused:
        channels.receive("t", "another", heard.append)
    assert refused.value.limit == "tenant_channels"
    async with asyncio.timeout(20):
        while len(heard) < 2:  # noqa: ASYNC110 - the send's own deadline
            await asyncio.sleep(0.005)
    assert heard == [0, -Errno.EAGAIN]
    assert reached == [("t", "tenant_channel_bytes")]
