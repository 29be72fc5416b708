"""Sessions: each frame once and in order, wherever the connections are cut."""

import asyncio
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import SESSION_KEPT_FRAMES, SESSION_UNREAD_BYTES_MAX
from symphony_kernel.protocol.links import Link, LinkError, connect_unix, serve_unix
from symphony_kernel.protocol.sessions import (
    BEGIN,
    Dialer,
    LinkLostError,
    SessionLink,
    SessionState,
)

from tests.support.memory_links import memory_pair
from tests.support.run_by import run_by

ID = b"session"


class Answerer:
    """The side that is connected to; it knows at most one session."""

    def __init__(self, state: SessionState | None = None) -> None:
        self.session: SessionLink | None = None
        self.received: list[list[Any]] = []
        self.answering = True
        if state is not None:
            self._make(state)

    @property
    def known(self) -> SessionLink:
        assert self.session is not None
        return self.session

    def _make(self, state: SessionState) -> SessionLink:
        self.session = session = SessionLink(state)
        session.receive(self.received.append, lambda: None)
        return session

    def meet(self, link: Link) -> None:
        introduced = False

        def on_frame(frame: list[Any]) -> None:
            nonlocal introduced
            if introduced:
                self.known.handle_frame(frame)
                return
            hello = m.decode(frame)
            assert isinstance(hello, m.Hello)
            introduced = self._welcome(link, hello)

        def on_closed() -> None:
            if self.session is not None:
                self.session.connection_ended(link)

        link.receive(on_frame, on_closed)

    def _welcome(self, link: Link, hello: m.Hello) -> bool:
        if not self.answering:
            return False
        if hello.received == BEGIN:
            link.send(m.encode(m.Welcome(1, {})))
            self._make(SessionState(hello.session)).connect(link, 0)
            return True
        session = self.session
        if session is None or session.id != hello.session or not session.can_resume(hello.received):
            link.send(m.encode(m.Welcome(1, {})))
            return False
        link.send(m.encode(m.Welcome(1, {}, True, session.received)))
        session.connect(link, hello.received)
        return True


class Caller:
    """The side that connects; it counts the session's events."""

    def __init__(self) -> None:
        self.received: list[list[Any]] = []
        self.begun = self.resumed = self.cuts = self.ended = 0
        self.dialer = Dialer("worker", "w", b"s", self.received.append, self)

    @property
    def session(self) -> SessionLink:
        assert self.dialer.session is not None
        return self.dialer.session

    async def call(self, meet: Callable[[Link], None]) -> asyncio.Event:
        """Connect to an answerer by memory; return what is set when the connection ends."""
        ours, theirs = memory_pair()
        meet(theirs)
        return await self.dialer.connect(ours)

    def session_begun(self, session: SessionLink, welcome: m.Welcome) -> None:
        self.begun += 1

    def session_resumed(self, welcome: m.Welcome) -> None:
        self.resumed += 1

    def session_cut(self) -> None:
        self.cuts += 1

    def session_ended(self) -> None:
        self.ended += 1


def whole(count: int) -> list[list[Any]]:
    return [[10, number, b"x" * (number * 37 % 300)] for number in range(count)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_frames_over_cut_memory_links_arrive_once_and_in_order(seed: int) -> None:
    asyncio.run(cut_at_random(seed, None))


@pytest.mark.parametrize("seed", range(6))
def test_frames_over_cut_sockets_arrive_once_and_in_order(socket_folder: Path, seed: int) -> None:
    asyncio.run(cut_at_random(seed, socket_folder / "s"))


async def cut_at_random(seed: int, path: Path | None) -> None:
    """Send both ways while connections end at random, some with a new answerer."""
    chance = random.Random(seed)
    caller, now = Caller(), [Answerer()]
    links: list[Link] = []  # the answerer's ends

    def meet(link: Link) -> None:
        links.append(link)
        now[0].meet(link)

    server = await serve_unix(path, meet) if path else None

    async def connect() -> asyncio.Event:
        if path is None:
            return await caller.call(meet)
        return await caller.dialer.connect(await connect_unix(path))

    over = await connect()
    received_before: list[list[Any]] = []
    there, back = whole(chance.randrange(1, 400)), whole(chance.randrange(1, 400))
    left, right = iter(there), iter(back)

    def send(ours: int | None, theirs: int | None) -> None:
        """Send the next frames of both sides, or the rest."""
        for frame in islice(left, ours):
            caller.session.send(frame)
        for frame in islice(right, theirs):
            now[0].known.send(frame)

    for _ in range(300):
        send(chance.randrange(6), chance.randrange(6))
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        if chance.random() < 0.1:
            (chance.choice([links[-1].close, links[-1].abort]))()
            if chance.random() < 0.3:  # the other side dies, and one with its state takes over
                received_before += now[0].received
                now[0] = Answerer(now[0].known.state())
            await over.wait()
            over = await connect()
    send(None, None)
    wanted = len(there) - len(received_before)
    async with asyncio.timeout(20):
        while (len(now[0].received), len(caller.received)) != (wanted, len(back)):  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert not caller.session.closed
    assert not now[0].known.closed
    assert received_before + now[0].received == there
    assert caller.received == back
    assert (caller.begun, caller.ended) == (1, 0)
    assert caller.resumed == caller.cuts
    caller.session.close()
    if server is not None:
        server.close()
    await asyncio.sleep(0.01)


def in_memory(test: Callable[[Caller, Answerer], Any]) -> None:
    async def main() -> None:
        caller, answerer = Caller(), Answerer()
        async with asyncio.timeout(20):
            await test(caller, answerer)

    asyncio.run(main())


@run_by(in_memory)
async def test_frames_that_are_acknowledged_are_not_kept(
    caller: Caller, answerer: Answerer
) -> None:
    await caller.call(answerer.meet)
    session = caller.session
    for number in range(20 * SESSION_KEPT_FRAMES):
        session.send([10, number])
        await asyncio.sleep(0)
        assert len(session.state().kept) < SESSION_KEPT_FRAMES + 8
    for _ in range(20):  # receipts for large ones are asked for sooner
        session.send([10, bytes(1 << 18)])
        for _ in range(5):
            await asyncio.sleep(0)
        assert session.backlog < 1 << 20
    session.send([10, b"the last one"])
    while session.backlog:  # noqa: ASYNC110 - nothing else is sent
        await asyncio.sleep(0.05)
    assert session.state() == SessionState(session.id, 0, session.sent)


@run_by(in_memory)
async def test_session_that_the_peer_does_not_know_ends(caller: Caller, answerer: Answerer) -> None:
    over = await caller.call(answerer.meet)
    first = caller.session
    first.send([10, "lost"])
    answerer.known.abort()
    await over.wait()
    forgetful = Answerer()
    with pytest.raises(LinkLostError):
        await caller.call(forgetful.meet)
    await asyncio.sleep(0)
    assert (caller.ended, first.closed, caller.dialer.session) == (1, True, None)
    await caller.call(forgetful.meet)
    assert caller.session.id != first.id
    caller.session.send([10, "found"])
    await asyncio.sleep(0.01)
    assert forgetful.received == [[10, "found"]]
    assert caller.begun == 2


@run_by(in_memory)
async def test_session_whose_welcome_was_lost_begins_once(
    caller: Caller, answerer: Answerer
) -> None:
    ours, theirs = memory_pair()
    answerer.meet(theirs)
    meeting = asyncio.create_task(caller.dialer.connect(ours))
    await asyncio.sleep(0)
    theirs.abort()
    with pytest.raises(LinkLostError):
        await meeting
    await caller.call(answerer.meet)
    caller.session.send([10, 1])
    await asyncio.sleep(0.01)
    assert answerer.received == [[10, 1]]
    assert (caller.begun, caller.ended) == (1, 0)


@run_by(in_memory)
async def test_session_states_that_do_not_match_are_not_resumed(
    caller: Caller, answerer: Answerer
) -> None:
    end = SessionLink(SessionState(ID, received=3, sent=10, kept=[b"\x91\x0a"] * 4))
    assert [n for n in range(-2, 13) if end.can_resume(n)] == [6, 7, 8, 9, 10]
    assert end.state() == SessionState(ID, 3, 10, [b"\x91\x0a"] * 4)
    # An older state of the answerer: it has not sent what the peer has received.
    await caller.call(answerer.meet)
    state = answerer.known.state()
    answerer.known.send([10, 1])
    await asyncio.sleep(0.01)
    assert caller.received == [[10, 1]]
    with pytest.raises(LinkLostError):
        await caller.call(Answerer(state).meet)


@pytest.mark.parametrize("receipt", [[6, 2], [6, "1"], [6, True], [6], [6, 1, 1], [6, None]])
@run_by(in_memory)
async def test_receipt_for_frames_that_were_not_sent_is_an_error(
    caller: Caller, answerer: Answerer, *, receipt: list[Any]
) -> None:
    end = SessionLink(SessionState(ID))
    end.send([10])
    with pytest.raises(LinkError):
        end.handle_frame(receipt)
    end.handle_frame([6, -5])  # an old one has no effect
    assert end.backlog
    end.handle_frame([6, 1])
    assert not end.backlog


@run_by(in_memory)
async def test_peer_that_wants_receipts_and_reads_none_gets_no_more(
    caller: Caller, answerer: Answerer
) -> None:
    ours, theirs = memory_pair()
    end = SessionLink(SessionState(ID))
    end.connect(theirs, 0)
    for _ in range(3 * SESSION_UNREAD_BYTES_MAX):
        end.handle_frame([m.ReceiptWanted.KIND])
        if theirs.backlog >= SESSION_UNREAD_BYTES_MAX:
            break
        ours._queue.append(bytes(100_000))  # as if much had been sent before
    before = theirs.backlog
    for _ in range(100):
        end.handle_frame([m.ReceiptWanted.KIND])
    assert theirs.backlog == before


def test_answerer_without_a_welcome_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symphony_kernel.protocol.sessions.HELLO_SECONDS_MAX", 0.05)

    async def test(caller: Caller, answerer: Answerer) -> None:
        answerer.answering = False
        with pytest.raises(LinkLostError, match="no Welcome"):
            await caller.call(answerer.meet)

    in_memory(test)


@run_by(in_memory)
async def test_session_on_a_new_connection_leaves_the_old_one(
    caller: Caller, answerer: Answerer
) -> None:
    over = await caller.call(answerer.meet)
    caller.session.send([10, 1])
    await caller.call(answerer.meet)
    await asyncio.wait_for(over.wait(), 5)
    caller.session.send([10, 2])
    await asyncio.sleep(0.01)
    assert answerer.received == [[10, 1], [10, 2]]
    assert caller.session.connected
