"""The page about fields of Anthropic's routes says what a server does with each."""

from typing import Any

import pytest

from tests.support.server.server import REPOSITORY, RunningServer
from tools.anthropic_fields_page import ROUTES, fields_page
from tools.openai_fields_page import Route, ask_server

PAGE = REPOSITORY / "docs/reference/anthropic-fields.md"
MAKE = "make it again: the docstring of tools/anthropic_fields_page.py says how"


async def test_fields_page_is_what_the_server_does(server: RunningServer) -> None:
    async with server.session() as session:
        page = await fields_page(lambda path, body: ask_server(session, path, body))
    assert page.splitlines() == PAGE.read_text().splitlines(), MAKE


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_fields_page_has_every_field_of_the_package(route: Route) -> None:
    section = PAGE.read_text().split(f"\n## `{route.path}`\n")[1].split("\n## ")[0]
    fields: list[Any] = [line.split("|")[1].split("`")[1] for line in section.splitlines()[3:]
                         if line]  # fmt: skip
    assert fields == list(dict.fromkeys(fields))
    assert fields == [name for name, _ in route.fields()]
