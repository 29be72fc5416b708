"""Servers with a GGUF file: its text is the folder's, whether it is named by path or by hub."""

from pathlib import Path
from typing import Any

import gguf
import httpx2

from benchmarks.checkpoints import CHAT_TEMPLATE, SHAPES, make_checkpoint
from tests.support.executor.gguf_files import write_gguf
from tests.support.server.hub import Hub, running_hub
from tests.support.server.server import RunningServer, running_server

ASKED = [{"role": "user", "content": "The tokens of 3 texts"}]


def _answer(server: RunningServer, model: str) -> Any:
    asked = {"model": model, "messages": ASKED, "max_tokens": 20, "temperature": 0}
    response = httpx2.post(
        f"{server.url}/v1/chat/completions",
        json=asked,
        headers={"Authorization": f"Bearer {server.key}"},
        timeout=30,
    )
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]


def test_gguf_file_answers_as_the_folder_that_it_is_made_of(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "small", SHAPES["small"], "fp32")

    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template(CHAT_TEMPLATE)

    file = write_gguf(tmp_path / "small-F32.gguf", folder, change=change)
    with running_server(tmp_path / "a", "--model", str(folder), executor="torch") as server:
        expected = _answer(server, "small")
    cache = {"HF_HOME": str(tmp_path / "cache"), "NO_PROXY": "127.0.0.1"}
    with running_hub(Hub({"org/small-GGUF": {file.name: file.read_bytes()}})) as hub:
        given = {**cache, "HF_ENDPOINT": hub.url}
        named = "--model", "org/small-GGUF:F32"
        with running_server(tmp_path / "b", *named, executor="torch", environment=given) as server:
            assert "org/small-GGUF:F32: 1 files" in server.log.read_text()
            assert _answer(server, "small-F32") == expected
