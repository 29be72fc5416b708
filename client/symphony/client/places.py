"""Which server a client talks to, and with which key, if its user names none.

A server writes a small JSON file ({url, key_file, pid}): `server.json` in its data directory, and a
copy in a folder of the user, where clients and commands find it.
"""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from symphony.client.errors import ClientError

NO_SERVER = "no server is known: start one with `symphony serve`, or name one with {names}"


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """A server's address, the file with the default tenant's key, and the supervisor's pid."""

    url: str
    key_file: Path
    pid: int

    @property
    def data_dir(self) -> Path:
        return self.key_file.parent


@dataclass(frozen=True, slots=True)
class Choice:
    """A server and a key: `url` is None if there is no server, `key` if none was found.

    `place` is the server's if it runs here. `live` are all that run here if none was named. `keys`
    are the places where a key was looked for.
    """

    url: str | None
    key: str | None
    place: ServerPlace | None
    live: tuple[ServerPlace, ...]
    keys: tuple[str, ...]


def choose(
    url: str | None, key: str | None, *, operator: bool = False, project: str | None = None
) -> Choice:
    """Return a server and a key: as named, else of the environment, else the newest that runs here.

    The variables are SYMPHONY_SERVER and SYMPHONY_KEY, for an operator SYMPHONY_ADMIN_KEY. The key
    of a server that runs here is read from its data directory, and never sent to another server.
    `project` is an address that a project's files name, which strangers may have written: it goes
    before SYMPHONY_SERVER, and gets the variable's key only if SYMPHONY_SERVER is the same.

    Raises ClientError: what was named is no address.
    """
    variable = "SYMPHONY_ADMIN_KEY" if operator else "SYMPHONY_KEY"
    own = os.environ.get("SYMPHONY_SERVER") or None
    named = url or project or own
    if named is not None and not named.startswith(("http://", "https://")):
        raise ClientError(f"{named} is not a server's address like http://127.0.0.1:8700")
    live = live_servers()
    place = _place(named, live)
    found, keys = key, []
    if url or not project or project.rstrip("/") == (own or "").rstrip("/"):
        found, keys = key or os.environ.get(variable), [variable]
    name = "admin.key" if operator else "default.key"
    if place is None:
        keys.append(f"{name} of a data directory whose server has this address and runs here")
    elif not found:
        file = place.data_dir / name
        keys.append(str(file))
        with contextlib.suppress(OSError):
            found = file.read_text(encoding="utf-8").strip()
    address = named or (place.url if place else None)
    return Choice(address, found or None, place, () if named else tuple(live), tuple(keys))


def find_server(
    url: str | None, key: str | None, *, operator: bool = False
) -> tuple[str, str | None]:
    """Return address and key as `choose` does.

    Raises ClientError: no server is known, or what was named is no address.
    """
    found = choose(url, key, operator=operator)
    if found.url is None:
        raise ClientError(NO_SERVER.format(names="`url` or SYMPHONY_SERVER"))
    return found.url, found.key


def _place(named: str | None, live: list[ServerPlace]) -> ServerPlace | None:
    """Return the server here that has this address, or without one the newest."""
    if named is None:
        return live[0] if live else None
    return next((place for place in live if place.url == named.rstrip("/")), None)


def user_servers() -> Path:
    """Return the folder with a file for each server of this user."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "symphony" / "servers"


def place_of(data_dir: Path) -> Path:
    """Return the file of the server that has this data directory."""
    return data_dir / "server.json"


def read_place(path: Path) -> ServerPlace | None:
    """Return what the file says, None if there is none or it cannot be parsed."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return ServerPlace(str(values["url"]), Path(values["key_file"]), int(values["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def live_servers() -> list[ServerPlace]:
    """Return this user's live servers, the one started last first; remove files of dead ones."""
    found = []
    for path in user_servers().glob("*.json"):
        place = read_place(path)
        if place is not None and is_live(place):
            found.append((announced_ms(place), place))
        else:
            path.unlink(missing_ok=True)
    return [place for _, place in sorted(found, key=lambda each: -each[0])]


def announced_ms(place: ServerPlace) -> int:
    """Return when a server was ready, in Unix milliseconds; 0 if it has ended meanwhile."""
    try:
        return place_of(place.data_dir).stat().st_mtime_ns // 1_000_000
    except OSError:
        return 0


def is_live(place: ServerPlace) -> bool:
    """Return whether a server's process is there and still has its data directory."""
    try:
        os.kill(place.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return read_place(place_of(place.data_dir)) == place
