"""Attached programs against real processes: what they compute, and what is left of them."""

import ast
import asyncio
import inspect
import json
import re
import struct
import time
from types import FunctionType
from typing import Any

import aiohttp
import msgpack
import pytest
import symphony
from symphony import KvFile, Rights, Sampling, Session, errors, model, process, tool

from examples.python.parallel_suffixes import parallel_suffixes
from examples.python.rag import Question, rag
from examples.python.react import react
from examples.python.tree_of_thoughts import tree_of_thoughts
from tests.e2e import programs as guests
from tests.support.attached import attached, client_process
from tests.support.examples import answers, play_scenario, scenario
from tests.support.server.server import REPOSITORY, RunningServer

FREED_SECONDS_MAX = 2.0  # from the death of a client to the last page of its run
HOLDER = """
import asyncio, symphony
async def main():
    async with symphony.attach(park={park}) as run:
        kv = symphony.KvFile.create()
        await kv.prefill(list(range(5, 261)))
        await kv.label("prefix")
        print(run.id, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


# --- The examples give what the Rust ones give ---------------------------------------------------
async def play(server: RunningServer, program: str) -> list[Any]:
    result, _ = await asyncio.to_thread(play_scenario, server, program)
    return answers(result)


async def test_parallel_suffixes_attached_gives_the_tokens_of_the_rust_one(
    server: RunningServer,
) -> None:
    async with attached(server):
        texts = await parallel_suffixes(**scenario("parallel_suffixes")["input"])
    said = await play(server, "parallel_suffixes/rust")
    assert texts == [each["text"] for each in said]


async def test_react_attached_gives_the_tokens_of_the_rust_one(server: RunningServer) -> None:
    async with attached(server):
        answer = await react(**scenario("react")["input"])
    *steps, last = await play(server, "react/rust")
    assert [vars(step) for step in answer.steps] == steps
    counted = {"answer": answer.answer, "tokens": answer.tokens}
    used = {"prefilled": answer.prefilled, "generated": answer.generated}
    assert counted | used == last


async def test_tree_search_attached_gives_the_tokens_of_the_rust_one(
    server: RunningServer,
) -> None:
    async with attached(server):
        best = await tree_of_thoughts(**scenario("tree_of_thoughts")["input"])
    (said,) = await play(server, "tree_of_thoughts")
    assert (best.text, best.steps) == (said["text"], said["steps"])
    assert (best.generated, best.prefilled) == (said["generated"], said["prefilled"])
    for mine, theirs in zip(best.levels, said["levels"], strict=True):
        assert mine == pytest.approx([each["score"] for each in theirs], abs=2e-5)


async def test_rag_attached_gives_the_tokens_of_the_rust_one(server: RunningServer) -> None:
    given = scenario("rag")
    questions = [Question(**json.loads(message)) for message in given["messages"]]
    wanted = given["input"]
    async with attached(server):
        answered = await rag(questions=questions, **wanted)
    said = {each["id"]: each["text"] for each in await play(server, "rag/rust")}
    assert answered.texts == [said[question.id] for question in questions]


# --- Calls ---------------------------------------------------------------------------------------
async def test_calls_of_one_pass_go_in_one_frame(server: RunningServer) -> None:
    async with attached(server) as run:
        tokens = await model.tokenize("def main():")
        before = run.calls.frames
        files = [KvFile.create() for _ in range(16)]
        choices = await asyncio.gather(*(kv.pred(tokens).argmax() for kv in files))
        assert (len({choice.token for choice in choices}), run.calls.frames - before) == (1, 1)


async def test_errors_are_named_by_their_errno(server: RunningServer) -> None:
    async with attached(server) as run:
        with pytest.raises(errors.ENOENT, match="kv_open: ENOENT"):
            await KvFile.open("nowhere")
        with pytest.raises(errors.EINVAL, match="unclosed group"):
            await symphony.Constraint.regex("(")
        with pytest.raises(errors.ENOENT):
            await tool.call("example.nothing", {})
        with pytest.raises(errors.ENOSYS, match="no call `nonsense`"):
            await run.calls.start("nonsense", {})
        with pytest.raises(errors.EINVAL, match="kv_len has no key `at`"):
            await run.calls.start("kv_len", {"kv": 1, "at": 2})
        closed = KvFile.create()
        closed.close()
        with pytest.raises(errors.EBADF):
            await closed.len()
        # A fork of what is not there fails where it is used.
        with pytest.raises(errors.EBADF):
            await closed.fork().len()
        with pytest.raises(errors.EFBIG, match="bytes"):
            await model.tokenize("x" * (1 << 20))


async def test_results_longer_than_a_message_come_whole(server: RunningServer) -> None:
    async with attached(server):
        with KvFile.create() as kv:
            tokens = await model.tokenize("def main(): return 1")
            rows = await kv.pred(tokens).all().logits()
            best = (await kv.fork().pred([5], keep=False).top(2))[0]
            vocab = (await model.info()).vocab_size
            assert [len(row) for row in rows] == [vocab] * len(tokens)
            assert best.logprob <= 0
            with pytest.raises(errors.EBADF):
                await kv.run.calls.start("kv_fork", {"kv": 10_000, "new": 10_001})


async def test_task_that_is_cancelled_drops_its_work(server: RunningServer) -> None:
    async with attached(server) as run:
        sleeps = [process.sleep(600_000) for _ in range(4_096)]
        with pytest.raises(errors.EAGAIN, match="4096 calls are under way"):
            await process.sleep(1)
        waiting = asyncio.create_task(asyncio.wait_for(sleeps[0], 600))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await process.sleep(1)  # there is room again
        for ticket in sleeps[1:]:
            ticket.cancel()
        kv = KvFile.create()
        generating = asyncio.create_task(kv.stream([5], Sampling(exact=True)).rest())
        await asyncio.sleep(0.05)
        generating.cancel()
        await asyncio.wait([generating])
        assert await kv.len() >= 0  # it is not busy any more
        async for _ in kv.stream([5], Sampling(exact=True)):
            break  # which drops the stream
        assert await kv.len() >= 1
        assert run.calls.ended is None


async def test_tool_children_and_queues_are_there(server: RunningServer) -> None:
    async with attached(server):
        answer = await tool.call("example.search", {"query": "ghent"})
        assert answer.ok
        assert "example.search" in [each.name for each in await tool.list()]
        waiting = process.channel_recv("attached-test")
        await process.channel_send("attached-test", b"an item")
        assert await waiting == b"an item"
        with pytest.raises(errors.ENOENT):
            await process.spawn("no-such-program")
        async with server.client() as client:
            await client.programs.upload(guests.HELLO_WASM, "hello")
        kv = KvFile.create()
        child = await process.spawn("hello", grants=[process.Grant(kv, "file", Rights.READ)])
        ended = await child.join()
        assert (ended.code, ended.output) == (0, b"hello")


async def test_rights_of_a_handle_hold(server: RunningServer) -> None:
    async with attached(server):
        with KvFile.create() as kv:
            await kv.prefill([5, 6, 7])
            await kv.save("attached/rights")
        read = await KvFile.open("attached/rights", Rights.READ)
        assert (await read.stat()).rights == Rights.READ
        with pytest.raises(errors.EACCES):
            await read.truncate(1)
        with pytest.raises(errors.EACCES):
            await read.pred([5])
        assert await read.tokens(0, 3) == [5, 6, 7]
        assert [each.path for each in await KvFile.list("attached/")] == ["attached/rights"]
        await KvFile.remove("attached/rights")


async def test_session_of_a_chat_and_a_constraint(server: RunningServer) -> None:
    async with attached(server):
        chat = Session.chat("Be kind.")
        await chat.user("hi")
        reply = await chat.reply(Sampling(max_tokens=6))
        await chat.user("and now?")
        known = await chat.render()
        assert known > 0
        assert len(reply.tokens) <= 6
        number = await symphony.Constraint.regex("[0-9]{3}")
        text = Session("x = ")
        found = await text.reply(Sampling(max_tokens=9, constraint=number))
        assert found.text.isdigit()
        assert len(found.text) == 3


# --- Who goes, and who comes ---------------------------------------------------------------------
async def test_killed_client_frees_everything_within_its_limit(server: RunningServer) -> None:
    before = await server.wait_until_idle()
    holder = client_process(server, HOLDER.format(park=False))
    assert holder.stdout is not None
    assert (await asyncio.to_thread(holder.stdout.readline)).startswith("run_")
    assert (await server.counters())["pages_free"] <= before["pages_free"] - 16
    holder.kill()
    began = time.monotonic()
    after = await server.wait_until_idle()
    seconds = time.monotonic() - began
    holder.wait()
    holder.stdout.close()
    assert after["pages_free"] == before["pages_free"]
    assert seconds < FREED_SECONDS_MAX


async def test_parked_run_is_taken_up_with_its_files(server: RunningServer) -> None:
    before = await server.wait_until_idle()
    holder = client_process(server, HOLDER.format(park=True))
    assert holder.stdout is not None
    run_id = (await asyncio.to_thread(holder.stdout.readline)).strip()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    async with attached(server, run_id):
        kv = KvFile.inherited()["prefix"]
        assert (await kv.len(), await kv.tokens(0, 3)) == (256, [5, 6, 7])
        await kv.pred([5])
        assert not KvFile.inherited()
    after = await server.wait_until_idle()
    assert after["pages_free"] == before["pages_free"]
    with pytest.raises(symphony.AttachError, match=r"has ended|no such run"):
        await attached(server, run_id)


async def test_run_is_taken_from_an_earlier_client(server: RunningServer) -> None:
    first = await attached(server, park=True)
    waiting = process.sleep(600_000)
    kv = KvFile.create()
    await kv.label("mine")
    async with attached(server, first.id):
        with pytest.raises(symphony.ConnectionLost, match="another client"):
            await waiting
        assert list(KvFile.inherited()) == ["mine"]
    await first.end()
    await server.wait_until_idle()


async def test_run_over_its_limit_ends_with_its_reason(server: RunningServer) -> None:
    async with attached(server, limits={"wall_ms": 150}) as run:
        with pytest.raises(symphony.RunEnded, match="wall time limit"):
            await process.sleep(60_000)
        assert run.calls.ended is not None
    with pytest.raises(symphony.AttachError, match="wall_ms"):
        await attached(server, limits={"wall_ms": 0})


# --- Hostile clients -----------------------------------------------------------------------------
async def said_to(server: RunningServer, *frames: bytes) -> list[Any]:
    """Send frames; return all that comes back, until the server closes."""
    said = []
    async with server.session() as session, session.ws_connect("/v1/attached") as socket:
        await socket.receive()
        for frame in frames:
            await socket.send_bytes(frame)
        async for message in socket:
            binary = message.type is aiohttp.WSMsgType.BINARY
            said.append(msgpack.unpackb(message.data) if binary else json.loads(message.data))
    return said


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"junk", "it is no list of calls"),
        (b"\x91\x93\x01\xa1a\x81\xa1k\xdd\xff\xff\xff\xff", "cut short"),
        (b"\x91\x93\x01\xa1a\x81\xa1k" + b"\x91" * 100_000, "cut short"),
        (b"\xdd\xff\xff\xff\xff" + b"\xc0" * 100, "a call is"),
        (b"", "cut short"),
    ],
)
async def test_client_that_speaks_another_language_is_ended(
    server: RunningServer, frame: bytes, words: str
) -> None:
    *_, told, end = await said_to(server, frame)
    assert told[0][:2] == [0, -22]
    assert words in told[0][2]
    assert (end["status"], end["exit_code"], words in end["reason"]) == ("exited", 1, True)


async def test_client_of_another_version_is_told_which_one_there_is(
    server: RunningServer,
) -> None:
    hello = [[1, "kv_create", {"new": 1}], [2, "hello", {"version": 9}], [3, "exit", {}]]
    told, _ = await said_to(server, msgpack.packb(hello))
    assert [each[:2] for each in told] == [[1, -22], [2, -38]]
    assert told[1][2] == "version 9 of the protocol; this server has 1"


async def test_client_that_does_not_read_harms_only_itself(server: RunningServer) -> None:
    before = await server.wait_until_idle()
    async with server.session() as session, session.ws_connect("/v1/attached") as socket:
        calls: list[Any] = [[1, "hello", {"version": 1}], [0, "kv_create", {"new": 1}]]
        opts = msgpack.packb({"get": "logits", "keep": False})
        asked = {"kv": 1, "tokens": struct.pack("<I", 5), "opts": opts}
        calls += [[10 + i, "pred", asked] for i in range(1_000)]  # 16 MB of answers
        await socket.send_bytes(msgpack.packb(calls))
        async with attached(server):  # another run computes meanwhile
            text = await KvFile.create().generate([5], Sampling(max_tokens=8)).text()
        assert text
        statistics = (await server.counters())["instances"]
        assert statistics <= 2
    after = await server.wait_until_idle()
    assert after["pages_free"] == before["pages_free"]


# --- Programs ------------------------------------------------------------------------------------
async def test_program_runs_attached_and_returns_its_own_type(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_SERVER", server.url)
    monkeypatch.setenv("SYMPHONY_KEY", server.key)
    best = await tree_of_thoughts.run(levels=1, branches=2, tokens=4)
    assert type(best).__name__ == "Best"
    assert len(best.levels[0]) == 2
    with pytest.raises(symphony.ValueRefused, match=r"\$\.levels"):
        await tree_of_thoughts.run(levels="many")  # type: ignore[arg-type]


async def test_program_deployed_gives_what_it_gives_attached(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_SERVER", server.url)
    monkeypatch.setenv("SYMPHONY_KEY", server.key)
    best = await tree_of_thoughts.run(levels=1, branches=2, tokens=4)
    deployed = await tree_of_thoughts.deploy()
    assert (deployed["name"], deployed["language"]) == (tree_of_thoughts.name, "python")
    async with server.client() as client:
        given = {"levels": 1, "branches": 2, "tokens": 4}
        result = await client.run(deployed["id"], given)
    assert result["status"] == "exited", result["reason"]
    (message,) = answers(result)
    assert message == tree_of_thoughts.signature.dump(best)


async def test_program_that_fails_names_its_own_line(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_SERVER", server.url)
    monkeypatch.setenv("SYMPHONY_KEY", server.key)

    @symphony.program
    async def opens(path: str) -> int:
        kv = await KvFile.open(path)
        return await kv.len()

    with pytest.raises(errors.ENOENT) as raised:
        await opens.run("nowhere")
    (note,) = raised.value.__notes__
    assert "program opens: " in note
    assert "test_attached.py:" in note


async def test_blocks_of_the_guide_run(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SYMPHONY_SERVER", server.url)
    monkeypatch.setenv("SYMPHONY_KEY", server.key)
    guide = (REPOSITORY / "docs/guides/python.md").read_text()
    first, *blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 5
    known: dict[str, Any] = {"__name__": "guide"}
    await asyncio.to_thread(exec, first, known)
    for block in blocks:
        code = compile(block, "python.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waits = FunctionType(code, known)()
        if inspect.iscoroutine(waits):
            await waits
        else:
            assert "sync" in block or "await" not in block
    assert (known["answer"].votes >= 1, len(known["logits"])) == (True, 4096)
    await asyncio.to_thread(known["sym"].run.end)
    await server.wait_until_idle()
    assert capsys.readouterr().out


def test_sync_facade_waits_for_each_call(server: RunningServer) -> None:
    with symphony.sync.attach(server=server.url, key=server.key) as sym:
        text = sym.Session("def add(a, b):\n")
        assert len(text.reply(sym.Sampling(max_tokens=4)).tokens) == 4
        kv = sym.KvFile.create()
        tokens = sym.model.tokenize("def main():")
        assert len(kv.pred(tokens).top(3)) == 3
        assert kv.len() == len(tokens)
        pieces = list(kv.generate([5], sym.Sampling(max_tokens=4)))
        assert all(isinstance(piece, str) for piece in pieces)
        with pytest.raises(errors.ENOENT):
            sym.KvFile.open("nowhere")
