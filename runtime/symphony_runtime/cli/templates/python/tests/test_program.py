"""`symphony test` runs each function test_...() on a server with the tiny model."""

from main import main
from symphony import Sampling, Session


async def test_it_asks_for_a_text():
    assert await main("") == "Give me a text to continue."


async def test_a_text_is_continued():
    text = Session("def main(")
    reply = await text.reply(Sampling(max_tokens=4, exact=True))
    assert len(reply.tokens) == 4, reply.tokens
