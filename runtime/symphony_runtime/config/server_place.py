"""Where a server is: its address, its key's file and its process.

Two small JSON files ({url, key_file, pid}) say so: `server.json` in the server's data directory,
and one for the user, in which the commands find it.
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


def user_server_file() -> Path:
    """Return the file that holds the address of this user's server."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "symphony" / "server.json"


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


def remove_place(path: Path, pid: int, former: ServerPlace | None = None) -> None:
    """Remove the file if it is of this process's server.

    `former` is what the file said before: it is restored if that server still runs.
    """
    place = read_place(path)
    if place is None or place.pid != pid:
        return
    path.unlink(missing_ok=True)
    if former is not None and read_place(former.key_file.with_name("server.json")) == former:
        write_place(path, former)
