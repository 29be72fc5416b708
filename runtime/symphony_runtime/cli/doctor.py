"""`symphony doctor`: checks what this machine has for Symphony."""

import asyncio
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

from symphony import AsyncClient, ClientError
from symphony.client.views import Role
from symphony_kernel.platform.disk_space import usual_reserve

from symphony_runtime.cli.projects import NODE_MIN, WASM_TARGET, ProjectError, find_rust_toolchain
from symphony_runtime.cli.serving.hub import parse_hub_name
from symphony_runtime.config.serve import ServeOptions, default_data_dir
from symphony_runtime.gateway.storage.disk_budget import parts_of

_WASMTIME = "50.0.1"
_COMMAND_SECONDS_MAX = 20


@dataclass(frozen=True, slots=True)
class Check:
    """One result. `needed`: the server does not work without it."""

    name: str
    good: bool
    words: str
    needed: bool = True


def examine(model: str, url: str | None) -> list[Check]:
    """Check everything; `url` is the server that commands would use."""
    return [
        _python(),
        _package("torch", "runs the model"),
        _package("wasmtime", "runs programs", exactly=_WASMTIME),
        *(_package(name, "needed by the server") for name in ("aiohttp", "msgpack", "tokenizers")),
        # In processes: the runtime does not import the kernel, and rights that are given up do not
        # come back.
        _asked("native kernels", "symphony_kernel.executor.native", "--check"),
        _asked("compiled kernel", "symphony_kernel.compiled", "--check"),
        _hostcalls(),
        _asked("containment", "symphony_runtime.sandboxing"),
        _model(model),
        _data_dir(default_data_dir()),
        _port(ServeOptions().host, ServeOptions().port, url),
        _server(url),
        _rust(),
        _assemblyscript(),
    ]


def _python() -> Check:
    good = (3, 11) <= tuple(map(int, platform.python_version_tuple()[:2])) < (3, 14)
    return Check("python", good, f"{platform.python_version()} (3.11 to 3.13 are supported)")


def _package(name: str, why: str, exactly: str | None = None) -> Check:
    try:
        found = version(name)
    except PackageNotFoundError:
        return Check(name, False, f"not installed; {why}")
    if exactly is not None and found != exactly:
        return Check(name, False, f"{found}, but Symphony needs {exactly}")
    return Check(name, True, found)


def _hostcalls() -> Check:
    found = importlib.util.find_spec("symphony_runtime.engine._hostcalls")
    words = "not built: run `make install`, which needs a C compiler and Python's headers"
    return Check("host calls", found is not None, words if found is None else "built")


def _asked(name: str, *module: str) -> Check:
    """Return what a module of ours reports in a process of its own."""
    command = (sys.executable, "-m", *module)
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name, False, f"the check failed: {error}", needed=False)
    words = (done.stdout or done.stderr).strip().splitlines()
    return Check(name, done.returncode == 0, words[-1] if words else "", needed=False)


def _model(model: str) -> Check:
    wanted = parse_hub_name(model, Path())
    if wanted is not None:
        return Check("model", True, f"{model}: at the Hugging Face Hub; a server downloads it")
    if model.lower().endswith(".gguf"):
        return Check("model", Path(model).is_file(), f"{model}: a GGUF file")
    if model == "tiny":
        folder = Path(str(files("symphony_kernel"))) / "tiny_model" / "weights"
    else:
        folder = Path(model)
    missing = [n for n in ("config.json", "tokenizer.json") if not (folder / n).is_file()]
    if not list(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        return Check("model", False, f"{model}: {', '.join(missing)} missing in {folder}")
    return Check("model", True, f"{model}: {folder}")


def _data_dir(path: Path) -> Check:
    parent = next(p for p in (path, *path.parents) if p.exists())
    if not os.access(parent, os.W_OK):
        return Check("data directory", False, f"{path} cannot be written: pass --data-dir")
    free = shutil.disk_usage(parent).free
    reserve = usual_reserve(parent)
    words = f"{path}, {free >> 20} MiB free; {reserve >> 20} MiB are reserved unless options differ"
    parts = sorted(parts_of(path).items(), key=lambda part: -part[1])
    if parts:
        words += "; it holds " + ", ".join(f"{name}: {size >> 20} MiB" for name, size in parts)
    # This file is half of the reserve, the other half is free space.
    held = (path / "reserve").exists()
    return Check("data directory", free >= reserve // 2 if held else free >= reserve, words)


def _port(host: str, port: int, url: str | None) -> Check:
    if url is not None and url.endswith(f":{port}"):
        return Check("port", True, f"{port} is the server's", needed=False)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Check("port", False, f"{host}:{port}: {error}; pass --port", needed=False)
    return Check("port", True, f"{host}:{port} is free", needed=False)


def _server(url: str | None) -> Check:
    if url is None:
        return Check(
            "server", False, "no server is known: `symphony serve` starts one", needed=False
        )
    try:
        ready, roles = asyncio.run(_ask_ready(url))
    except (ClientError, TimeoutError) as error:
        return Check("server", False, f"{url} does not answer: {error}", needed=False)
    away = [str(role["role"]) for role in roles if not role["ready"]]
    return Check("server", ready, f"{url}" + (f", not ready: {', '.join(away)}" if away else ""))


async def _ask_ready(url: str) -> tuple[bool, list[Role]]:
    async with asyncio.timeout(5), AsyncClient(url, retries=0) as client:
        return await client.ready()


def _rust() -> Check:
    try:
        toolchain = find_rust_toolchain()
    except ProjectError:
        words = f"no compiler with the target {WASM_TARGET}; programs in Rust cannot be built here"
        return Check("rust", False, words, needed=False)
    return Check("rust", True, f"{toolchain.describe()}; with {WASM_TARGET}", needed=False)


def _assemblyscript() -> Check:
    node = _output("node", "--version")
    if not node:
        words = "no node; programs in AssemblyScript cannot be built here"
        return Check("assemblyscript", False, words, needed=False)
    if int(node.lstrip("v").partition(".")[0]) < NODE_MIN:
        words = f"node {node}; programs in AssemblyScript need {NODE_MIN} or newer"
        return Check("assemblyscript", False, words, needed=False)
    asc = shutil.which("asc")
    words = f"node {node}, asc: {asc or 'in the project (npm install)'}"
    return Check("assemblyscript", True, words, needed=False)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the names are ours
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
