"""A server's announcement: the files by which clients find it (`symphony.client.places`)."""

import json
import os
from pathlib import Path

from symphony.client.places import ServerPlace, place_of, read_place, user_servers


def write_place(path: Path, place: ServerPlace) -> None:
    """Write the file of a server, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"url": place.url, "key_file": str(place.key_file), "pid": place.pid})
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)  # only its owner may read it
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)


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
