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
    """The side that is connected to: knows one session, as far as its state says."""

    def __init__(self, state: SessionState | None = None) -> None:
        self.session: SessionLink | None = None
        self.heard: list[list[Any]] = []
        self.answering = True
        if state is not None:
            self._make(state)

    def _make(self, state: SessionState) -> SessionLink:
        self.session = session = SessionLink(state)
        session.receive(self.heard.append, lambda: None)
        return session

    def meet(self, link: Link) -> None:
        introduced = False

        def on_frame(frame: list[Any]) -> None:
            nonlocal introduced
            if introduced:
                assert self.session is not None
                self.session.handle_frame(frame)
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
    """The side that connects; what it hears of the session is counted."""

    def __init__(self) -> None:
        self.heard: list[list[Any]] = []
        self.begun = self.resumed = self.cuts = self.ended = 0
        self.dialer = Dialer("worker", "w", b"s", self.heard.append, self)

    @property
    def session(self) -> SessionLink:
        assert self.dialer.session is not None
        return self.dialer.session

    def session_begun(self, session: SessionLink, welcome: m.Welcome) -> None:
        self.begun += 1

    def session_resumed(self, welcome: m.Welcome) -> None:
        self.resumed += 1

    def session_cut(self) -> None:
        self.cuts += 1

    def session_ended(self) -> None:
        self.ended += 1


Connect = Callable[[Callable[[Link], None]], Any]


async def by_memory(meet: Callable[[Link], None]) -> Link:
    ours, theirs = memory_pair()
    meet(theirs)
    return ours


@pytest.fixture(params=["memory", "socket"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


async def settle(both: list[SessionLink], heard: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not heard():  # noqa: ASYNC110
            await asyncio.sleep(0)
    for end in both:
        assert not end.closed


def whole(count: int) -> list[list[Any]]:
    return [[10, number, b"x" * (number * 37 % 300)] for number in range(count)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_each_frame_comes_once_and_in_order_over_memory_links(seed: int) -> None:
    asyncio.run(cut_at_random(seed, None))


@pytest.mark.parametrize("seed", range(6))
def test_each_frame_comes_once_and_in_order_over_sockets(socket_folder: Path, seed: int) -> None:
    asyncio.run(cut_at_random(seed, socket_folder / "s"))


async def cut_at_random(seed: int, path: Path | None) -> None:
    """Both send; connections end at any instant, and now and then the answerer is another one."""
    chance = random.Random(seed)
    caller, now = Caller(), [Answerer()]
    links: list[Link] = []  # the answerer's ends

    def meet(link: Link) -> None:
        links.append(link)
        now[0].meet(link)

    server = await serve_unix(path, meet) if path else None

    async def connect() -> asyncio.Event:
        return await caller.dialer.connect(await (connect_unix(path) if path else by_memory(meet)))

    over = await connect()
    heard_before: list[list[Any]] = []
    there, back = whole(chance.randrange(1, 400)), whole(chance.randrange(1, 400))
    left, right = iter(there), iter(back)
    for _ in range(300):
        for frame in islice(left, chance.randrange(6)):
            caller.session.send(frame)
        assert now[0].session is not None
        for frame in islice(right, chance.randrange(6)):
            now[0].session.send(frame)
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        if chance.random() < 0.1:
            (chance.choice([links[-1].close, links[-1].abort]))()
            if (
                chance.random() < 0.3
            ):  # the other side dies, and one that knows its state takes over
                heard_before += now[0].heard
                now[0] = Answerer(now[0].session.state())
            await over.wait()
            over = await connect()
    for frame in left:
        caller.session.send(frame)
    assert now[0].session is not None
    for frame in right:
        now[0].session.send(frame)

    def all_there() -> bool:
        return len(heard_before) + len(now[0].heard) == len(there) and len(caller.heard) == len(
            back
        )

    await settle([caller.session, now[0].session], all_there)
    assert heard_before + now[0].heard == there
    assert caller.heard == back
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
async def test_what_is_acknowledged_is_not_kept(caller: Caller, answerer: Answerer) -> None:
    await caller.dialer.connect(await by_memory(answerer.meet))
    session = caller.session
    for number in range(20 * SESSION_KEPT_FRAMES):
        session.send([10, number])
        await asyncio.sleep(0)
        assert len(session.state().kept) < SESSION_KEPT_FRAMES + 8
    for _ in range(20):  # large ones are asked about sooner
        session.send([10, bytes(1 << 18)])
        for _ in range(5):
            await asyncio.sleep(0)
        assert session.backlog < 1 << 20
    session.send([10, b"the last one"])
    while session.backlog:  # noqa: ASYNC110 - nobody sends anything: a pause is enough
        await asyncio.sleep(0.05)
    assert session.state() == SessionState(session.id, 0, session.sent)


@run_by(in_memory)
async def test_a_session_that_is_not_known_ends_and_the_next_meeting_begins_another(
    caller: Caller, answerer: Answerer
) -> None:
    over = await caller.dialer.connect(await by_memory(answerer.meet))
    first = caller.session
    first.send([10, "lost"])
    assert answerer.session is not None
    answerer.session.abort()
    await over.wait()
    forgetful = Answerer()
    with pytest.raises(LinkLostError):
        await caller.dialer.connect(await by_memory(forgetful.meet))
    await asyncio.sleep(0)
    assert (caller.ended, first.closed, caller.dialer.session) == (1, True, None)
    await caller.dialer.connect(await by_memory(forgetful.meet))
    assert caller.session.id != first.id
    caller.session.send([10, "found"])
    await asyncio.sleep(0.01)
    assert forgetful.heard == [[10, "found"]]
    assert caller.begun == 2


@run_by(in_memory)
async def test_a_welcome_that_was_lost_begins_nothing_twice(
    caller: Caller, answerer: Answerer
) -> None:
    ours, theirs = memory_pair()
    answerer.meet(theirs)
    meeting = asyncio.create_task(caller.dialer.connect(ours))
    await asyncio.sleep(0)
    theirs.abort()
    with pytest.raises(LinkLostError):
        await meeting
    await caller.dialer.connect(await by_memory(answerer.meet))
    caller.session.send([10, 1])
    await asyncio.sleep(0.01)
    assert answerer.heard == [[10, 1]]
    assert (caller.begun, caller.ended) == (1, 0)


@run_by(in_memory)
async def test_states_that_do_not_fit_are_not_resumed(caller: Caller, answerer: Answerer) -> None:
    end = SessionLink(SessionState(ID, received=3, sent=10, kept=[b"\x91\x0a"] * 4))
    assert [n for n in range(-2, 13) if end.can_resume(n)] == [6, 7, 8, 9, 10]
    assert end.state() == SessionState(ID, 3, 10, [b"\x91\x0a"] * 4)
    # An older state of ours that the peer is ahead of: what it has got was never sent here.
    await caller.dialer.connect(await by_memory(answerer.meet))
    assert answerer.session is not None
    state = answerer.session.state()
    answerer.session.send([10, 1])
    await asyncio.sleep(0.01)
    assert caller.heard == [[10, 1]]
    with pytest.raises(LinkLostError):
        await caller.dialer.connect(await by_memory(Answerer(state).meet))


@pytest.mark.parametrize("receipt", [[6, 2], [6, "1"], [6, True], [6], [6, 1, 1], [6, None]])
@run_by(in_memory)
async def test_a_receipt_for_what_was_not_sent_breaks_the_protocol(
    caller: Caller, answerer: Answerer, *, receipt: list[Any]
) -> None:
    end = SessionLink(SessionState(ID))
    end.send([10])
    with pytest.raises(LinkError):
        end.handle_frame(receipt)
    end.handle_frame([6, -5])  # an old one is none
    assert end.backlog
    end.handle_frame([6, 1])
    assert not end.backlog


@run_by(in_memory)
async def test_whoever_wants_receipts_and_reads_none_costs_little(
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


def test_a_silent_answerer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symphony_kernel.protocol.sessions.HELLO_SECONDS_MAX", 0.05)

    async def test(caller: Caller, answerer: Answerer) -> None:
        answerer.answering = False
        with pytest.raises(LinkLostError, match="no Welcome"):
            await caller.dialer.connect(await by_memory(answerer.meet))

    in_memory(test)


@run_by(in_memory)
async def test_a_newer_connection_takes_the_place_of_the_old_one(
    caller: Caller, answerer: Answerer
) -> None:
    over = await caller.dialer.connect(await by_memory(answerer.meet))
    caller.session.send([10, 1])
    await caller.dialer.connect(await by_memory(answerer.meet))
    await asyncio.wait_for(over.wait(), 5)
    caller.session.send([10, 2])
    await asyncio.sleep(0.01)
    assert answerer.heard == [[10, 1], [10, 2]]
    assert caller.session.connected
