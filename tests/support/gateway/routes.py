"""Routes as tests ask for them."""

import re
from collections.abc import Iterable

from symphony_runtime.gateway.api.openapi import build_document
from symphony_runtime.gateway.api.routes import ROUTES

_GONE = 499  # the client has gone and does not see it


def filled(path: str, /, **names: str) -> str:
    """A route's path with names in its places; what has none is nothing that there is.

    The one stream without an end gets the query that ends it.
    """
    path = "/v1/events?follow=0" if path == "/v1/events" else path
    return re.sub(r"{(\w+)}", lambda place: names.get(place[1], "nothing"), path)


def undocumented(answered: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Of (route, status) those that the document does not name."""
    paths = build_document(ROUTES)["paths"]
    known = {
        (route.name, int(status))
        for route in ROUTES
        for status in paths[route.path][route.method.lower()]["responses"]
    }
    # "none" is what no route of the table is for.
    return [(name, status) for name, status in answered
            if (name, status) not in known and name != "none" and status != _GONE]  # fmt: skip
