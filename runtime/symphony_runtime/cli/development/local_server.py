"""The server of `symphony dev` and `symphony test`: one that runs, or one of their own."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symphony.client.places import place_of, read_place

from symphony_runtime.cli.output import CommandError, printable
from symphony_runtime.cli.project_settings import FILE
from symphony_runtime.cli.servers import choose
from symphony_runtime.cli.serving.hub import locate_model, parse_hub_name

START_SECONDS_MAX = 120  # a large model takes long
_STOP_SECONDS_MAX = 10
MODEL_DEFAULT = "tiny"
_LINES_SHOWN = 20
# The options that a project, which others may have written, sets for a server that this command
# starts. None of them runs a program, opens the machine to others, or names where data goes.
_PROJECT_OPTIONS = frozenset({
    "model", "device", "dtype", "quantize", "tool_format", "threads", "workers", "pool_bytes",
    "prefix_cache_share", "host_pool_tokens", "queue_seconds_max", "max_decode_gap_ms",
    "delivery_ms", "runs_live_max", "tenant_runs_live_max", "limits",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A server's address and the key for it; `own` if this command has started it."""

    url: str
    key: str | None
    own: bool


@contextlib.asynccontextmanager
async def some_server(
    options: argparse.Namespace,
    directory: Path,
    serve: Mapping[str, Any],
    say: Callable[[str], object],
) -> AsyncIterator[Place]:
    """A server that runs, else one with the options `serve`; that one ends with the block.

    A project whose `serve` has options gets a server of its own, unless the user names one.
    """
    own = getattr(options, "own_server", False)
    named = options.server or os.environ.get("SYMPHONY_SERVER")
    if not own and (named or not serve):
        choice = choose(options)
        if choice.url is not None:
            say(f"server {choice.url}" + (f" ({choice.origin})" if choice.origin else ""))
            yield Place(choice.url, choice.key, own=False)
            return
    async with own_server(directory, serve, say) as place:
        yield place


@contextlib.asynccontextmanager
async def own_server(
    directory: Path, serve: Mapping[str, Any], say: Callable[[str], object]
) -> AsyncIterator[Place]:
    """A server on a free port with a new data directory; both end with the block.

    Paths in `serve` are relative to `directory`.

    Raises CommandError: `serve` has an option that no project may set, or the server did not start;
    the message has the end of its log.
    """
    serve = checked_options(directory, serve)
    model = serve.get("model", MODEL_DEFAULT)
    say(f"starting a server with the model {printable(model)}")
    if model != MODEL_DEFAULT:
        # Here, because the server's start has a time limit and its log is hidden.
        serve["model"] = await asyncio.to_thread(locate_model, str(model), directory, say)
    with tempfile.TemporaryDirectory(prefix="symphony-dev-") as name:
        folder = Path(name)
        config = folder / FILE
        config.write_text(to_toml({"port": 0, "disk_reserve_bytes": 0, **serve}), encoding="utf-8")
        with (folder / "server.log").open("wb") as log:
            process = _start(folder, config, log.fileno())
        try:
            place = await _wait_until_ready(process, folder)
            say(f"server {place.url}, which ends with this command")
            yield place
        finally:
            await asyncio.shield(asyncio.to_thread(_stop, process))


def checked_options(directory: Path, serve: Mapping[str, Any]) -> dict[str, Any]:
    """Return a project's options with absolute paths; CommandError: it may not set one of them."""
    if refused := sorted(serve.keys() - _PROJECT_OPTIONS):
        names = ", ".join(printable(name) for name in refused)
        raise CommandError(
            f"{directory / FILE}: no project may set {names} in its table serve: start "
            "`symphony serve` with a configuration of your own, and name it with --server"
        )
    options, model = dict(serve), serve.get("model", MODEL_DEFAULT)
    if isinstance(model, list | dict):
        raise CommandError(f"{directory / FILE}: a project's server has one model: name one")
    if not isinstance(model, str) or model == MODEL_DEFAULT:
        return options
    if parse_hub_name(model, directory) is None:
        options["model"] = str(directory / Path(model).expanduser())
    return options


def _start(folder: Path, config: Path, log: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "symphony_runtime.cli.development.served", str(os.getpid()),
               "--config", str(config), "--data-dir", str(folder / "data")]  # fmt: skip
    # A tool's `python` is the one that has Symphony.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    # A session of its own: Ctrl-C is this command's, which then ends the server in order.
    return subprocess.Popen(  # noqa: S603 - this program
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "PATH": path},
        start_new_session=True,
    )


async def _wait_until_ready(process: "subprocess.Popen[bytes]", folder: Path) -> Place:
    data = folder / "data"
    for _ in range(START_SECONDS_MAX * 50):
        found = read_place(place_of(data))
        if found is not None and found.pid == process.pid:
            key = found.key_file.read_text(encoding="utf-8").strip()
            return Place(found.url, key, own=True)
        if process.poll() is not None:
            break
        await asyncio.sleep(0.02)
    words = (folder / "server.log").read_text(encoding="utf-8", errors="replace").splitlines()
    told = "\n".join(words[-_LINES_SHOWN:])
    raise CommandError(f"the server did not start within {START_SECONDS_MAX} s:\n{told}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a server: a second signal ends its drain."""
    for sign in (signal.SIGTERM, signal.SIGTERM):
        if process.poll() is None:
            process.send_signal(sign)
    try:
        process.wait(_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def to_toml(table: Mapping[str, Any], path: str = "") -> str:
    """Return a table of TOML values as TOML: plain values first, then its tables."""
    plain = {name: value for name, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"{_quoted(name)} = {_value(value)}\n" for name, value in plain.items()]
    for name, value in table.items():
        if isinstance(value, Mapping):
            inner = f"{path}{_quoted(name)}"
            lines.append(f"[{inner}]\n{to_toml(value, f'{inner}.')}")
    return "".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quoted(k)} = {_value(v)}" for k, v in value.items()) + "}"
    return str(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
