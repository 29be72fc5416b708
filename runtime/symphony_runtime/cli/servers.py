"""Which server a command talks to, and with which key; `symphony servers`."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from symphony import ClientError
from symphony.client import places
from symphony.client.places import ServerPlace, announced_ms, live_servers, user_servers

from symphony_runtime.cli.output import CommandError, print_listing, printable, time_of

_NONE = places.NO_SERVER.format(names="--server or SYMPHONY_SERVER")


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
            print(f"symphony: server {printable(self.url or '')} ({self.origin})", file=sys.stderr)

    def no_key(self) -> str:
        """Return where a key was looked for, "" if one was found."""
        return "" if self.key else f"no key was found in {', '.join(self.keys)}"


def choose(options: argparse.Namespace, project: tuple[str, Path] | None = None) -> Choice:
    """Return the server and the key, from options, environment and this user's live servers.

    `project` is an address and the project's file that names it, used if no option names one.

    Raises CommandError: that is no address, or the project's server has no key of its own.
    """
    operator = getattr(options, "operator", False)
    try:
        address = project[0] if project else None
        found = places.choose(options.server, options.key, operator=operator, project=address)
    except ClientError as error:
        raise CommandError(str(error)) from error
    if project is not None and not options.server:
        if found.key is None:
            raise CommandError(
                f"{project[1]} chooses the server {printable(project[0])}, which gets no key of "
                "yours by itself: give one with --key, or set SYMPHONY_SERVER to this address"
            )
        return Choice(found.url, found.key, f"chosen by {project[1]}", ())
    origin = _origin(found.place, found.live) if found.place and found.live else ""
    return Choice(found.url, found.key, origin, ("--key", *found.keys))


def _origin(local: ServerPlace, live: tuple[ServerPlace, ...]) -> str:
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
