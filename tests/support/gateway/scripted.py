"""The scripted agent: a model that does in each turn what a script in the conversation says.

`tests/guest_sdk/scripted_agent/src/lib.rs` says what a script may hold.
"""

import json
from functools import cache
from typing import Any

from symphony import AsyncClient
from symphony_runtime.cli.projects import build

from tests.support.server.server import REPOSITORY

FOLDER = REPOSITORY / "tests" / "guest_sdk" / "scripted_agent"


@cache
def scripted_wasm() -> bytes:
    """Return the program, built once in a session."""
    return build(FOLDER).read_bytes()


async def upload_scripted(client: AsyncClient, name: str = "scripted") -> str:
    """Upload it; return its name, which is that of the model."""
    await client.programs.upload(scripted_wasm(), name=name)
    return name


def script(*steps: dict[str, Any]) -> str:
    """Return the line that a user's message has to hold, with a step for each turn."""
    return f"SCRIPT: {json.dumps(steps)}"
