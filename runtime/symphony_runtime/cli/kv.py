"""`symphony kv`: list, show, download, upload and remove KV files; cached prefixes."""

import argparse
import os
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from symphony import AsyncClient
from symphony.client.views import PrefixPart

from symphony_runtime.cli.arguments import LIMITED, LISTING, SERVER, add_command
from symphony_runtime.cli.output import (
    STDOUT,
    CommandError,
    Meter,
    first,
    local_time,
    print_json,
    print_listing,
    printable,
    show,
    time_of,
)

_PIECE_BYTES = 256 << 10
_TOKENS_AT_ONCE = 4_096
_PREFIX_CHARACTERS = 60  # shown of a part of a prefix


async def list_files(client: AsyncClient, options: argparse.Namespace) -> None:
    print_listing(options, await first(client.kv.list(options.prefix), options.limit), {
        "PATH": "path",
        "TOKENS": "len",
        "PAGES": "pages",
        "TIER": "tier",
        "KEPT": _kept,
        "UNTIL": time_of("expires_ms"),
    })  # fmt: skip


def _kept(file: Mapping[str, Any]) -> str:
    words = [word for word in ("durable", "public") if file[word]]
    return ", ".join(words) or "in memory"


async def stat(client: AsyncClient, options: argparse.Namespace) -> None:
    file = await client.kv.stat(options.path)
    if options.json:
        print_json(file)
        return
    for name, value in file.items():
        if isinstance(value, dict):
            value = ", ".join(f"{count} {key}" for key, count in value.items() if count)
        elif name == "expires_ms":
            value = local_time(file["expires_ms"]) if value else "never"
        print(f"{name:12}{value}")


async def pages(client: AsyncClient, options: argparse.Namespace) -> None:
    """Show ranges of equal pages."""
    shown = await client.kv.pages(options.path)
    print_listing(options, shown["data"], {
        "PAGES": _page_numbers,
        "TIER": "tier",
        "SHARED": _shared,
    })  # fmt: skip


def _page_numbers(found: Mapping[str, Any]) -> str:
    first, last = found["first"], found["first"] + found["pages"] - 1
    return str(first) if first == last else f"{first}-{last}"


def _shared(found: Mapping[str, Any]) -> str:
    others = found["holders"] - len(found["files"])
    words = [*found["files"], *([f"{others} other"] if others > 0 else [])]
    return ", ".join([*words, *(["the prefix cache"] if found["cached"] else [])]) or "no"


async def tokens(client: AsyncClient, options: argparse.Namespace) -> None:
    """Write the text of a file's tokens; with --json all that is known of each."""
    first, left = options.first, options.limit
    while left:
        most = min(left, _TOKENS_AT_ONCE)
        shown = await client.kv.tokens(options.path, first, most, text=True)
        if options.json:
            print_json(shown)
        elif shown["texts"] is None:
            print(*shown["tokens"])
        else:
            text = printable("".join(shown["texts"]), "\n\t")
            print(text, end="" if shown["next"] else "\n")
        first, left = first + len(shown["tokens"]), left - most
        if shown["next"] is None:
            break


async def prefixes(client: AsyncClient, options: argparse.Namespace) -> None:
    """Show the tree of cached prefixes, each part indented below the one before it."""
    shown = await client.kv.prefixes(options.limit, text=True)
    if options.json:
        print_json(shown)
        return
    below: dict[int | None, list[PrefixPart]] = {}
    for part in shown["data"]:
        below.setdefault(part["parent"], []).append(part)
    waiting = [(part, 0) for part in reversed(below.get(None, []))]
    if not waiting:
        print("no prefix is cached")
    while waiting:
        part, level = waiting.pop()
        text = (part["text"] or " ".join(map(str, part["tokens"])))[:_PREFIX_CHARACTERS]
        more = f", {part['more']} more below" if part["more"] else ""
        size = f"{part['pages'] * shown['page_tokens']} tokens"
        print(f"{'  ' * level}{part['hits']} hits  {size}{more}  {text!r}")
        waiting += [(each, level + 1) for each in reversed(below.get(part["id"], []))]


async def get(client: AsyncClient, options: argparse.Namespace) -> None:
    """Write a file to disk, or to stdout; an existing file is replaced atomically."""
    output = options.output or Path(f"{PurePosixPath(options.path).name}.safetensors")
    pieces = client.kv.download(options.path)
    if output == STDOUT:
        await _write(pieces, sys.stdout.buffer, options.path)
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with partial.open("xb") as file:
            size = await _write(pieces, file, options.path)
        partial.replace(output)
    except OSError as error:
        raise CommandError(f"{output}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    written = {"path": options.path, "file": str(output), "bytes": size}
    show(options, written, f"{output}  {size} bytes")


async def _write(pieces: AsyncIterator[bytes], file: IO[bytes], words: str) -> int:
    with Meter(words) as meter:
        async for piece in pieces:
            file.write(piece)
            meter.add(len(piece))
    return meter.done


async def put(client: AsyncClient, options: argparse.Namespace) -> None:
    given = {
        "replace": not options.keep_old,
        "rebuild": options.rebuild or None,
        "public": options.public or None,
        "keep_ms": options.keep_ms,
    }
    try:
        with options.file.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            with Meter(str(options.file), total) as meter:
                shown = await client.kv.upload(options.path, _pieces(file, meter), **given)
    except OSError as error:
        raise CommandError(f"{options.file}: {error.strerror}") from error
    show(options, shown, f"{shown['path']}  {shown['len']} tokens")


async def _pieces(file: IO[bytes], meter: Meter) -> AsyncIterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece
        meter.add(len(piece))


async def remove(client: AsyncClient, options: argparse.Namespace) -> None:
    await client.kv.remove(options.path)


def add_kv(commands: Any) -> None:
    kv = commands.add_parser("kv", help="list, show, download, upload or remove named KV files")
    actions = kv.add_subparsers(title="actions", required=True, metavar="ACTION")
    add = partial(add_command, actions)
    listed = add("list", "list files", list_files, SERVER, LISTING, LIMITED)
    listed.add_argument(
        "prefix", nargs="?", default="", help="public/TENANT/: the files that a tenant publishes"
    )
    add("stat", "show a file", stat, SERVER, LISTING).add_argument("path")
    add(
        "pages", "show a file's pages: where they are, and who shares them", pages, SERVER, LISTING
    ).add_argument("path")
    shown = add("tokens", "write the text of a file's tokens", tokens, SERVER, LISTING)
    shown.add_argument("path")
    shown.add_argument("--first", type=int, default=0, metavar="N", help="begin with this token")
    shown.add_argument("--limit", type=int, default=1 << 20, metavar="N", help="how many tokens")
    tree = add("prefixes", "show the cached prefixes with their hits", prefixes, SERVER, LISTING)
    tree.add_argument("--limit", type=int, default=50, metavar="N", help="parts that are shown")
    got = add("get", "download a file (safetensors)", get, SERVER, LISTING)
    got.add_argument("path")
    got.add_argument("-o", "--output", type=Path, metavar="FILE", help="- is stdout")
    brought = add("put", "upload a file (safetensors)", put, SERVER, LISTING)
    brought.add_argument("file", type=Path, metavar="FILE")
    brought.add_argument("path")
    brought.add_argument("--rebuild", action="store_true", help="recompute K and V from its tokens")
    brought.add_argument("--public", action="store_true", help="other tenants may read it")
    brought.add_argument("--keep-ms", type=int, help="how long it is kept; default for ever")
    brought.add_argument("--keep-old", action="store_true", help="replace nothing")
    add("rm", "remove a name", remove, SERVER, LISTING).add_argument("path")
