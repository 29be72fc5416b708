"""Where a server is: its address, its key's file and its process.

A small JSON file ({url, key_file, pid}) says so: `server.json` in the server's data directory, and
a copy for each live server in a folder of the user, where the commands find it.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """A server's address, the file with the default tenant's key, and the supervisor's pid."""

    url: str
    key_file: Path
    pid: int

    @property
    def data_dir(self) -> Path:
        return self.key_file.parent


def user_servers() -> Path:
    """Return the folder with a file for each server of this user."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "symphony" / "servers"


def place_of(data_dir: Path) -> Path:
    """Return the file of the server that has this data directory."""
    return data_dir / "server.json"


def write_place(path: Path, place: ServerPlace) -> None:
    """Write the file of a server, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"url": place.url, "key_file": str(place.key_file), "pid": place.pid})
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)  # only its owner may read it
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)


def read_place(path: Path) -> ServerPlace | None:
    """Return what the file says, None if there is none or it cannot be parsed."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return ServerPlace(str(values["url"]), Path(values["key_file"]), int(values["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def announce(place: ServerPlace) -> None:
    """Write both files of a server."""
    write_place(place_of(place.data_dir), place)
    write_place(user_servers() / f"{place.pid}.json", place)


def withdraw(data_dir: Path, pid: int) -> None:
    """Remove both files if they are of this process's server."""
    for path in (place_of(data_dir), user_servers() / f"{pid}.json"):
        place = read_place(path)
        if place is not None and place.pid == pid:
            path.unlink(missing_ok=True)


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
