"""Files and batches as tests make them, over HTTP."""

import asyncio
import io
import json
from collections.abc import Iterable
from typing import Any

import aiohttp

from tests.support.gateway.system import Answer, SystemRig

COMPLETIONS = "/v1/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def line_of(custom_id: str, body: Any = None, **fields: Any) -> dict[str, Any]:
    usual = {"model": "simulated", "prompt": f"say {custom_id}", "max_tokens": 4, "temperature": 0}
    body = usual | (body or {})
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": body, **fields}


def jsonl(lines: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def upload(
    system: SystemRig, data: Any, purpose: str = "batch", key: str | None = None, **fields: str
) -> Answer:
    """Upload a file; `data` are bytes, or chunks of them that are made as they are sent."""
    form = aiohttp.FormData()
    form.add_field("purpose", purpose)
    for name, value in fields.items():
        form.add_field(name, value)
    data = io.BytesIO(data) if isinstance(data, bytes) else data
    form.add_field("file", data, filename="input.jsonl", content_type="application/jsonl")
    return await system.ask("POST", "/v1/files", key=key, data=form)


async def create(system: SystemRig, file_id: str, key: str | None = None, **fields: Any) -> Answer:
    body = {"input_file_id": file_id, "endpoint": COMPLETIONS, "completion_window": "24h"}
    return await system.ask("POST", "/v1/batches", key=key, json=body | fields)


async def begin(system: SystemRig, lines: Iterable[Any] | bytes, **fields: Any) -> str:
    """Upload lines and make a batch of them; return its id."""
    data = lines if isinstance(lines, bytes) else jsonl(lines)
    file = await upload(system, data)
    assert file.status == 200, file
    batch = await create(system, file.json["id"], **fields)
    assert batch.status == 200, batch
    return str(batch.json["id"])


async def ended(
    system: SystemRig, batch_id: str, key: str | None = None, seconds: float = 60
) -> Any:
    """Wait until a batch has ended; return it."""
    async with asyncio.timeout(seconds):
        while True:
            batch = (await system.ask("GET", f"/v1/batches/{batch_id}", key=key)).json
            if batch["status"] in ENDED:
                return batch
            await asyncio.sleep(0.02)


async def results(system: SystemRig, file_id: str | None) -> list[Any]:
    """Return the lines of a result file, [] if there is none."""
    if file_id is None:
        return []
    content = await system.ask("GET", f"/v1/files/{file_id}/content")
    assert content.status == 200
    return [json.loads(line) for line in content.body.splitlines()]
