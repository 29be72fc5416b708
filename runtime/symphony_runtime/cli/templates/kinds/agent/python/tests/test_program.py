"""`symphony test --server URL` runs each function test_...() on a server with its tools."""

from main import main, parse
from symphony import tool


def test_actions_are_read():
    assert parse("search[a lys]") == ("search", "a lys")
    assert parse("finish[it") == ("finish", "it")


async def test_the_tool_answers():
    found = await tool.call("project.search", {"query": "the lys"})
    assert "Lisbourg" in found.content, found.content


async def test_it_ends_with_an_answer():
    told = await main("Where does the Lys rise?", steps=2)
    assert isinstance(told["answer"], str), told
