"""`symphony adapters`: list, show, upload and delete LoRA adapters."""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from symphony import AsyncClient

from symphony_runtime.cli.arguments import LIMITED, LISTING, SERVER, add_command
from symphony_runtime.cli.output import (
    CommandError,
    first,
    print_listing,
    show,
    time_of,
)

_FILES = ("adapter_config.json", "adapter_model.safetensors")


async def list_adapters(client: AsyncClient, options: argparse.Namespace) -> None:
    print_listing(options, await first(client.adapters.list(), options.limit), {
        "NAME": "name",
        "MODEL": "model",
        "RANK": "rank",
        "SIZE": _size,
        "UPLOADED": time_of("created_ms"),
    })  # fmt: skip


def _size(adapter: Mapping[str, Any]) -> str:
    return f"{adapter['bytes'] / 1e6:.1f} MB"


async def stat(client: AsyncClient, options: argparse.Namespace) -> None:
    adapter = await client.adapters.get(options.name)
    words = "\n".join(f"{name:12}{value}" for name, value in adapter.items())
    show(options, adapter, words)


async def put(client: AsyncClient, options: argparse.Namespace) -> None:
    """Upload the two files of a PEFT folder."""
    config, weights = (options.folder / name for name in _FILES)
    name = options.name or options.folder.resolve().name
    try:
        text = config.read_text(encoding="utf-8")
        with weights.open("rb") as file:
            adapter = await client.adapters.upload(name, text, file)
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{config}: it is not text: {error}") from error
    show(options, adapter, f"{adapter['name']}  {adapter['model']}  rank {adapter['rank']}")


async def remove(client: AsyncClient, options: argparse.Namespace) -> None:
    await client.adapters.delete(options.name)


def add_adapters(commands: Any) -> None:
    adapters = commands.add_parser("adapters", help="list, show, upload or delete LoRA adapters")
    actions = adapters.add_subparsers(title="actions", required=True, metavar="ACTION")
    add = partial(add_command, actions)
    add("list", "list adapters", list_adapters, SERVER, LISTING, LIMITED)
    add("stat", "show an adapter", stat, SERVER, LISTING).add_argument("name")
    brought = add("put", "upload an adapter in PEFT's format", put, SERVER, LISTING)
    brought.add_argument("folder", type=Path, metavar="FOLDER", help=f"with {' and '.join(_FILES)}")
    brought.add_argument("name", nargs="?", help="by default the folder's")
    add("rm", "delete an adapter", remove, SERVER, LISTING).add_argument("name")
