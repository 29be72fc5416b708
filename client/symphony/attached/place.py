"""Which server a program uses, and with which key.

An argument comes first, then SYMPHONY_SERVER and SYMPHONY_KEY, then this user's server that was
started last: `symphony serve` writes a file for each, which names its address and its key's file.
"""

import json
import os
from pathlib import Path

from symphony.attached.errors import AttachError

_NONE = (
    "no server is known: start one with `symphony serve`, or name one with `server=` or"
    " SYMPHONY_SERVER"
)


def find_server(server: str | None = None, key: str | None = None) -> tuple[str, str]:
    """Return a server's address and a key; AttachError: there is none."""
    url = server or os.environ.get("SYMPHONY_SERVER")
    key = key or os.environ.get("SYMPHONY_KEY")
    if url and key:
        return url.rstrip("/"), key
    for found, key_file in _local_servers():
        if url is None or url.rstrip("/") == found:
            return found, key or key_file.read_text().strip()
    if url is None:
        raise AttachError(_NONE)
    raise AttachError(f"no key is known for {url}: give `key=` or SYMPHONY_KEY")


def _local_servers() -> list[tuple[str, Path]]:
    """Return this user's live servers and their keys' files, the one started last first."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    found = list[tuple[float, str, Path]]()
    for path in (Path(home) / "symphony" / "servers").glob("*.json"):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            url, key_file, pid = str(values["url"]), Path(values["key_file"]), int(values["pid"])
            os.kill(pid, 0)
            if os.access(key_file, os.R_OK):
                found.append((path.stat().st_mtime, url.rstrip("/"), key_file))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # of a server that has ended
    return [(url, key_file) for _, url, key_file in sorted(found, reverse=True)]
