"""Which server a command talks to, and with which key; `symphony servers`."""

import argparse
import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from symphony_runtime.cli.output import CommandError, print_listing, time_of
from symphony_runtime.config.server_place import (
    ServerPlace,
    announced_ms,
    live_servers,
    user_servers,
)

_NONE = (
    "no server is known: start one with `symphony serve`, or name one with --server "
    "or SYMPHONY_SERVER"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The server of a command: `url` is None if there is none, `key` if none was found.

    `origin` says where the address is from, "" if the user named it. `keys` are the places where
    a key was looked for.
    """

    url: str | None
    key: str | None
    origin: str
    keys: tuple[str, ...]

    def server(self) -> str:
        """Return the address; CommandError: there is none."""
        if self.url is None:
            raise CommandError(_NONE)
        return self.url

    def show_origin(self) -> None:
        """Say on stderr which server is used if the user named none."""
        if self.origin:
            print(f"symphony: server {self.url} ({self.origin})", file=sys.stderr)

    def no_key(self) -> str:
        """Return where a key was looked for, "" if one was found."""
        return "" if self.key else f"no key was found in {', '.join(self.keys)}"


def choose(options: argparse.Namespace) -> Choice:
    """Return the server and the key, from options, environment and this user's live servers."""
    operator = getattr(options, "operator", False)
    variable = "SYMPHONY_ADMIN_KEY" if operator else "SYMPHONY_KEY"
    named = options.server or os.environ.get("SYMPHONY_SERVER") or None
    if named is not None and not named.startswith(("http://", "https://")):
        raise CommandError(f"{named} is not a server's address like http://127.0.0.1:8700")
    live = live_servers()
    local = _local(named, live)
    url = named or (local.url if local else None)
    origin = "" if named or local is None else _origin(local, live)
    key, keys = options.key or os.environ.get(variable), ["--key", variable]
    name = "admin.key" if operator else "default.key"
    if local is None:
        keys.append(f"{name} of a data directory whose server has this address and runs here")
    elif not key:
        file = local.data_dir / name
        keys.append(str(file))
        with contextlib.suppress(OSError):
            key = file.read_text(encoding="utf-8").strip()
    return Choice(url, key or None, origin, tuple(keys))


def _local(named: str | None, live: list[ServerPlace]) -> ServerPlace | None:
    """Return the local server that commands use: with this address, else the newest.

    A local server's key is never sent to another server.
    """
    if named is None:
        return live[0] if live else None
    return next((place for place in live if place.url == named.rstrip("/")), None)


def _origin(local: ServerPlace, live: list[ServerPlace]) -> str:
    if len(live) == 1:
        return f"from {_short(user_servers() / f'{local.pid}.json')}"
    return (
        f"the newest of {len(live)} that run here: `symphony servers` lists them, "
        "--server or SYMPHONY_SERVER names one"
    )


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def list_servers(options: argparse.Namespace) -> None:
    """List this user's live servers, the one that commands use first."""
    servers = [
        {
            "url": place.url,
            "pid": place.pid,
            "data_dir": str(place.data_dir),
            "started_ms": announced_ms(place),
        }
        for place in live_servers()
    ]
    print_listing(options, servers, {
        "URL": "url", "PID": "pid", "STARTED": time_of("started_ms"), "DATA": "data_dir",
    })  # fmt: skip
