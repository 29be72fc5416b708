"""`symphony deploy` in a project that names a server: whose key goes where."""

import argparse
import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from symphony_runtime.cli.development.deploying import deploy
from symphony_runtime.cli.output import CommandError

from tests.support.web import serving

PROGRAM = {"id": "sha256:00", "size": 1, "imports": []}


async def test_projects_server_gets_a_key_only_if_its_user_gives_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: set[str | None] = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        shown.add(request.headers.get("Authorization"))
        return web.json_response({}, status=404) if request.method == "GET" else web.json_response(
            PROGRAM
        )  # fmt: skip

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SYMPHONY_SERVER", raising=False)
    monkeypatch.setenv("SYMPHONY_KEY", "secret")
    (tmp_path / "main.js").write_text("lip.exit(0);\n")
    options = argparse.Namespace(directory=tmp_path, server=None, key=None, json=False)
    async with serving(answer) as port:
        url = f"http://127.0.0.1:{port}"
        file = tmp_path / "symphony.toml"
        file.write_text(f'[program]\nserver = "{url}"\n')
        with pytest.raises(CommandError, match=f"chooses the server {url}, .* with --key"):
            await asyncio.to_thread(deploy, options)
        assert shown == set()
        options.key = "given"
        await asyncio.to_thread(deploy, options)
    assert shown == {"Bearer given"}
    assert f"symphony: server {url} (chosen by {file})\n" in capsys.readouterr().err
