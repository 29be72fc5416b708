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

from tests.support.waiting import wait_until

Answers = list[bytes | int]
FIT = TENANT_CHANNEL_BYTES_MAX // MESSAGE_BYTES_MAX


def fill(channels: Channels, item: bytes = b"x") -> Answers:
    """Send as many items as a channel holds; return the answers."""
    answers: Answers = []
    for _ in range(CHANNEL_ITEMS_MAX):
        channels.send("t", "c", item, answers.append)
    return answers


async def test_channel_items_come_in_order_to_receivers_in_order() -> None:
    channels = Channels(5000)
    sent: Answers = []
    first: Answers = []
    second: Answers = []
    for item in (b"1", b"2"):
        channels.send("t", "c", item, sent.append)
    assert sent == [0, 0]
    for receiver in (first, first, second, first):
        channels.receive("t", "c", receiver.append)
    assert first == [b"1", b"2"]
    for item in (b"3", b"4"):
        channels.send("t", "c", item, sent.append)
    assert (second, first) == ([b"3"], [b"1", b"2", b"4"])
    assert channels.statistics() == {"channels": 0, "bytes": 0}


async def test_channel_of_another_tenant_is_another_one() -> None:
    channels, received = Channels(5000), Answers()
    channels.send("one", "c", b"secret", lambda _: None)
    channels.receive("two", "c", received.append)
    assert received == []


async def test_send_into_a_full_channel_waits_and_gives_up() -> None:
    channels, late, taken = Channels(send_ms_max=20), Answers(), Answers()
    assert fill(channels) == [0] * CHANNEL_ITEMS_MAX
    channels.send("t", "c", b"late", late.append)
    channels.send("t", "c", b"too late", late.append)
    channels.receive("t", "c", taken.append)
    assert (late, taken) == ([0], [b"x"])
    await wait_until(lambda: len(late) == 2)
    assert late == [0, -Errno.EAGAIN]
    for _ in range(CHANNEL_ITEMS_MAX):
        channels.receive("t", "c", taken.append)
    assert taken[-1] == b"late"
    assert channels.statistics() == {"channels": 0, "bytes": 0}


async def test_cancelled_channel_call_takes_and_gives_nothing() -> None:
    channels, dropped, received = Channels(5000), Answers(), Answers()
    waiter = channels.receive("t", "c", dropped.append)
    channels.cancel_call("t", "c", waiter)
    assert channels.statistics()["channels"] == 0
    waiter = channels.receive("t", "c", dropped.append)
    channels.receive("t", "c", received.append)
    channels.cancel_call("t", "c", waiter)
    channels.send("t", "c", b"1", lambda _: None)
    assert (dropped, received) == ([], [b"1"])


async def test_cancelled_channel_calls_leave_nothing_in_the_queue() -> None:
    channels, answers = Channels(5000), Answers()
    first = channels.receive("t", "c", answers.append)
    for _ in range(100):
        channels.cancel_call("t", "c", channels.receive("t", "c", answers.append))
    channels.cancel_call("t", "d", channels.receive("t", "d", answers.append))
    assert list(channels._tenants["t"]["c"].receivers) == [first]
    channels.cancel_call("t", "c", first)
    channels.cancel_call("t", "c", first)
    fill(channels)
    stays = channels.send("t", "c", b"stays", answers.append)
    for _ in range(100):
        channels.cancel_call("t", "c", channels.send("t", "c", bytes(1000), answers.append))
    assert list(channels._tenants["t"]["c"].senders) == [stays]
    assert channels._waiting["t"] == len(b"stays")
    assert answers == []


async def test_sends_that_wait_have_a_bound_in_bytes() -> None:
    channels, answers = Channels(5000), Answers()
    fill(channels, b"")
    waiting = [
        channels.send("t", "c", bytes(MESSAGE_BYTES_MAX), answers.append) for _ in range(FIT)
    ]
    assert answers == []
    channels.send("t", "c", b"x", answers.append)
    assert answers == [-Errno.EAGAIN]
    channels.cancel_call("t", "c", waiting[3])
    channels.send("t", "c", b"x", answers.append)
    assert answers == [-Errno.EAGAIN]
    channels.receive("t", "c", lambda _: None)  # one goes in
    assert answers == [-Errno.EAGAIN, 0]


@pytest.mark.parametrize(
    ("name", "item", "errno"),
    [
        ("", b"", Errno.EINVAL),
        ("é" * NAME_BYTES_MAX, b"", Errno.ENAMETOOLONG),
        ("c", bytes(MESSAGE_BYTES_MAX + 1), Errno.EFBIG),
    ],
)
async def test_bad_channel_call_is_refused(name: str, item: bytes, errno: Errno) -> None:
    with pytest.raises(SyscallError) as refused:
        Channels(5000).send("t", name, item, lambda _: None)
    assert refused.value.errno == errno


async def test_channels_of_a_tenant_are_bounded_in_number_and_bytes() -> None:
    channels, answers = Channels(5000), Answers()
    for number in range(FIT + 1):
        channels.send("t", f"big{number}", bytes(MESSAGE_BYTES_MAX), answers.append)
    assert answers == [0] * FIT
    for number in range(FIT + 1, TENANT_CHANNELS_MAX):
        channels.receive("t", f"small{number}", answers.append)
    with pytest.raises(SyscallError) as refused:
        channels.receive("t", "one more", answers.append)
    assert refused.value.errno == Errno.EDQUOT
    channels.receive("other", "one more", answers.append)


async def test_refused_channel_call_names_its_tenants_limit() -> None:
    reached: list[tuple[str, str]] = []
    limits = Limits(parse_limits({"tenant_channels": 1, "tenant_channel_bytes": 5}))
    channels = Channels(20, limits, lambda *what: reached.append(what))
    answers = Answers()
    channels.send("t", "c", b"12345", answers.append)
    channels.send("t", "c", b"6", answers.append)
    with pytest.raises(LimitError) as refused:
        channels.receive("t", "another", answers.append)
    assert refused.value.limit == "tenant_channels"
    await wait_until(lambda: len(answers) == 2)
    assert answers == [0, -Errno.EAGAIN]
    assert reached == [("t", "tenant_channel_bytes")]
