"""`symphony test` runs each function test_...() on a server with the tiny model."""

from main import answer
from symphony import Sampling, Session


async def test_turns_share_one_file():
    chat = Session.chat("Be kind.")
    await answer(chat, "hello", Sampling(max_tokens=4))
    known = len(await chat.tokens())
    await answer(chat, "and now?", Sampling(max_tokens=4))
    assert len(await chat.tokens()) > known, "the second turn is behind the first"
