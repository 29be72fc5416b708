"""A hub on a local port: the routes of the Hugging Face Hub that its client uses to download."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Repositories by name, each with its files; `main` and `other` are their revisions."""

    repositories: dict[str, dict[str, bytes]]
    gated: frozenset[str] = frozenset()
    url: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range
    cut: dict[str, int] = field(default_factory=dict)  # bytes after which an answer breaks, once

    def downloaded(self) -> list[str]:
        """Return the files that were requested since the last call, in order of names."""
        made, self.requests = self.requests, []
        paths = [path.split("/resolve/")[1] for method, path, _ in made
                 if method == "GET" and "/resolve/" in path]  # fmt: skip
        return sorted({path.split("/", 1)[1] for path in paths})


@contextmanager
def running_hub(hub: Hub) -> Iterator[Hub]:
    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    served: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Say nothing: the tests read `Hub.requests`."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.served.requests.append((self.command, path, self.headers.get("Range", "")))
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/(revision|tree)/(.+))?", path)
        resolved = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = api or resolved
        name = found[1] if found else ""
        files = self.served.repositories.get(name)
        revision = (api[3] if api else resolved[2] if resolved else None) or "main"
        if files is None:
            self._fail(401, "RepoNotFound")
        elif name in self.served.gated:
            self._fail(403, "GatedRepo")
        elif revision not in ("main", "other", COMMIT):
            self._fail(404, "RevisionNotFound")
        elif api and api[2] == "tree":
            self._json([{"type": "file", "path": path, "size": len(data), "oid": _etag(data)}
                        for path, data in files.items()])  # fmt: skip
        elif api:
            siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
            self._json({"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings})
        elif resolved and resolved[3] in files:
            self._file(resolved[3], files[resolved[3]])
        else:
            self._fail(404, "EntryNotFound")

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _fail(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _file(self, name: str, data: bytes) -> None:
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        begin = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if begin is None:
            self._send(200, data, headers, self.served.cut, name)
            return
        at = int(begin[1])
        headers["Content-Range"] = f"bytes {at}-{len(data) - 1}/{len(data)}"
        self._send(206, data[at:], headers)

    def _send(
        self,
        status: int,
        data: bytes,
        headers: dict[str, str],
        cut: dict[str, int] | None = None,
        name: str = "",
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        kept = cut.pop(name, None) if cut else None
        self.wfile.write(data if kept is None else data[:kept])
        if kept is not None:
            self.close_connection = True


def _etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
