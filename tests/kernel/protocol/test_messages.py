"""Messages: each is encoded and decoded to the same, and wrong frames are refused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_kernel.protocol import links
from symphony_kernel.protocol import messages as m

SAMPLES: list[m.Message] = [
    m.Hello(1, "worker", "worker-0", b"\x01\x02", 77, b"\x03", 8),
    m.Welcome(5, {"model": {"vocab_size": 9}}, True, 7),
    m.Ask(3, "kv_list", {"tenant": "t", "prefix": ""}), m.Answer(3, 0, [1, {"a": None}]),
    m.Unask(3), m.Receipt(9), m.ReceiptWanted(),
    m.Calls([[1, 16, 2, 65536, b"\0\0\0\0", None, b""]]),
    m.Replies([[1, 2, b"\0" * 8], [1, 3, -5]]), m.Spent([[1, 250]]), m.Pace("t", 20),
    m.Register(1, 2**62, "t", "worker-0", 0, 0, {"weight": 1.5}), m.End(2, 2**62),
    m.Exceeded(7, "tokens"), m.Module("sha256:00", b"\0asm"),
    m.Start(1, "sha256:00", "_start", b"input", {"wall_ms": 5}), m.Deliver(1, b"hi"),
    m.CloseInput(1), m.Kill(1, "cancelled"), m.Credit(1, 100), m.Unload("sha256:00"), m.Retire(),
    m.Output([[1, b"x"]]), m.Logs([[1, 3, b"x"]]), m.Received(1, 2, 30),
    m.Traced(1, [[1, "send", 0.5, 0.75, 0, False]]), m.Ended(1, "exited", -1, "", {"cpu_ms": 1}),
]  # fmt: skip


each_message = pytest.mark.parametrize("message", SAMPLES, ids=lambda sample: type(sample).__name__)


def test_messages_have_samples_and_kinds_of_their_own() -> None:
    assert {type(sample) for sample in SAMPLES} == set(m.MESSAGES)
    kinds = [message.KIND for message in m.MESSAGES]
    assert len(set(kinds)) == len(kinds)
    assert all(kind > 0 for kind in kinds)


@each_message
def test_message_is_encoded_and_decoded_to_the_same(message: m.Message) -> None:
    assert m.decode(links.decode(links.encode(m.encode(message)))) == message


@each_message
def test_message_with_a_field_too_few_or_too_many_is_refused(message: m.Message) -> None:
    frame = m.encode(message)
    for wrong in (frame[:-1], [*frame, 0], frame[:1] if len(frame) > 1 else []):
        with pytest.raises(m.MessageError):
            m.decode(wrong)


@each_message
def test_message_with_a_field_of_another_type_is_refused(message: m.Message) -> None:
    samples: list[Any] = [True, None, 5, 1.5, "text", b"bytes", [1], {"a": 1}]
    for index, field in enumerate(dataclasses.fields(message), start=1):
        if field.type is Any:
            continue
        frame = m.encode(message)
        right = type(frame[index])
        for wrong in (each for each in samples if type(each) is not right):
            frame[index] = wrong
            with pytest.raises(m.MessageError):
                m.decode(frame)


@pytest.mark.parametrize("kind", [0, -1, 99, True, None, "1", 1.0, b"\x01", [1], {}])
def test_message_of_an_unknown_kind_is_refused(kind: Any) -> None:
    with pytest.raises(m.MessageError):
        m.decode([kind, 1, 2, 3])


@given(st.lists(st.integers() | st.text() | st.binary() | st.none() | st.booleans(), min_size=1))
def test_frame_at_random_is_a_message_or_a_message_error(frame: list[Any]) -> None:
    try:
        message = m.decode(frame)
    except m.MessageError:
        return
    assert m.encode(message) == frame


def test_operations_have_own_numbers_and_messages_are_listed() -> None:
    assert len({int(op) for op in m.Op}) == len(m.Op.__members__)
    page = Path(m.__file__).read_text().split('"""')[1]
    missing = [message.__name__ for message in m.MESSAGES if message.__name__ not in page]
    assert missing == []
