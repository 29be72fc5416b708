"""What an operator says of the outside in symphony.toml: which tools and which URLs, for whom.

[tools.weather]                        # an MCP server; programs call weather.forecast
command = ["python", "weather.py"]     # started by the gateway; or url = "https://.../mcp"
tenants = ["default"]                  # who may use it: nobody, where nobody is named
environment = {API_KEY = "..."}        # beside PATH, HOME and the like
directory = "tools"                    # where it runs; relative to the file
headers = {Authorization = "..."}      # sent to `url`
timeout_seconds = 60                   # of one call
calls_at_once = 16                     # of one tenant; more of them wait

[[http]]                               # URLs that programs may ask for
tenants = ["default"]
urls = ["https://api.example.com/v1/", "https://*.example.org"]
methods = ["GET", "HEAD"]              # these, where none are named
networks = ["10.1.2.0/24"]             # not public, but may be reached under these names
"""

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symphony_kernel.protocol.limits import (
    HTTP_RULES_MAX,
    TOOL_CALL_MS_DEFAULT,
    TOOL_CALL_MS_MAX,
    TOOL_CALLS_AT_ONCE_DEFAULT,
    TOOL_CALLS_AT_ONCE_MAX,
    TOOL_SERVERS_MAX,
)
from yarl import URL

_SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_METHOD = re.compile(r"[A-Z]{1,20}")
# What lies below a path to us could lie elsewhere to a server: an encoded slash is one to some, and
# some leave out what follows a semicolon, so that "..;x" means the folder above.
_HIDDEN = re.compile(r"%2F|%5C|/(?:\.|%2E){1,2}(?:;|%3B)", re.IGNORECASE)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
EVERYBODY = "*"  # in `tenants`


@dataclass(frozen=True, slots=True)
class ToolServerOptions:
    """One MCP server: `command` to start it, or the `url` where it is."""

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    tenants: frozenset[str] = frozenset()
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    directory: Path | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout_ms: int = TOOL_CALL_MS_DEFAULT
    calls_at_once: int = TOOL_CALLS_AT_ONCE_DEFAULT

    def serves(self, tenant: str) -> bool:
        """Whether a tenant may use it."""
        return tenant in self.tenants or EVERYBODY in self.tenants


@dataclass(frozen=True, slots=True)
class UrlPattern:
    """URLs of one origin whose path begins so."""

    scheme: str
    host: str
    port: int
    path: str  # ends with a slash, or is "" for any
    below: bool = False  # names below `host`, not itself

    def covers(self, url: URL) -> bool:
        """Whether a URL is one of them; `url` is absolute and normalised."""
        host = url.raw_host or ""
        named = host.endswith(f".{self.host}") if self.below else host == self.host
        if not named or (url.scheme, url.port) != (self.scheme, self.port):
            return False
        path = url.raw_path
        if self.path and _HIDDEN.search(path):
            return False
        return f"{path}/".startswith(self.path)


@dataclass(frozen=True, slots=True)
class HttpRule:
    """What some tenants may ask for."""

    tenants: frozenset[str]
    urls: tuple[UrlPattern, ...]
    methods: frozenset[str]
    networks: tuple[Network, ...] = ()

    def serves(self, tenant: str) -> bool:
        """Whether it is about a tenant."""
        return tenant in self.tenants or EVERYBODY in self.tenants

    def covers(self, url: URL) -> bool:
        """Whether it is about a URL."""
        return any(pattern.covers(url) for pattern in self.urls)


def parse_http(values: Any) -> tuple[HttpRule, ...]:
    """Return the rules in the tables `http`.

    Raises:
        ValueError: in words for the operator.
    """
    if not isinstance(values, list):
        raise ValueError("http must be a list of tables: [[http]]")
    if len(values) > HTTP_RULES_MAX:
        raise ValueError(f"http: at most {HTTP_RULES_MAX} tables")
    return tuple(_rule(f"http, number {n}", table) for n, table in enumerate(values, 1))


def _rule(where: str, table: Any) -> HttpRule:
    check_keys(where, table, {"tenants", "urls", "methods", "networks"})
    patterns = tuple(_pattern(where, text) for text in texts(where, table, "urls"))
    if not patterns:
        raise ValueError(f"{where}: urls says what may be asked for")
    methods = texts(where, table, "methods") or ("GET", "HEAD")
    for method in methods:
        if not _METHOD.fullmatch(method) or method in ("CONNECT", "TRACE"):
            raise ValueError(f"{where}: {method!r} is no method that programs may use")
    networks = [_network(where, text) for text in texts(where, table, "networks")]
    # Who names an address means it.
    networks += [_network(where, p.host) for p in patterns if _is_address(p.host)]
    return HttpRule(
        tenants=frozenset(texts(where, table, "tenants")),
        urls=patterns,
        methods=frozenset(methods),
        networks=tuple(networks),
    )


def _pattern(where: str, text: str) -> UrlPattern:
    below = "://*." in text
    try:
        url = URL(text.replace("://*.", "://", 1))
        host, port = url.raw_host, url.port
    except ValueError as error:
        raise ValueError(f"{where}: {text!r} is no URL: {error}") from error
    wrong = not host or "*" in host or url.raw_query_string or url.raw_fragment or url.user
    if wrong or url.scheme not in ("http", "https") or port is None:
        raise ValueError(f"{where}: {text!r} must be https://host[:port][/path]")
    assert host is not None
    path = url.raw_path.rstrip("/")
    return UrlPattern(url.scheme, host, port, f"{path}/" if path else "", below)


def _network(where: str, text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{where}: {text!r} is no network: {error}") from error


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parse_tools(values: Any) -> tuple[ToolServerOptions, ...]:
    """Return the servers in the table `tools`.

    Raises:
        ValueError: in words for the operator.
    """
    if not isinstance(values, dict):
        raise ValueError("tools must be a table of servers")
    if len(values) > TOOL_SERVERS_MAX:
        raise ValueError(f"tools: at most {TOOL_SERVERS_MAX} servers")
    return tuple(_server(name, table) for name, table in values.items())


def _server(name: str, table: Any) -> ToolServerOptions:
    where = f"tools.{name}"
    if not _SERVER_NAME.fullmatch(name):
        raise ValueError(f"{where}: a server's name has letters, digits, - and _")
    known = {"command", "url", "tenants", "environment", "directory", "headers",
             "timeout_seconds", "calls_at_once"}  # fmt: skip
    check_keys(where, table, known)
    command = texts(where, table, "command")
    url = table.get("url", "")
    if bool(command) == bool(url):
        raise ValueError(f"{where}: one of command and url says what it is")
    if url:
        _check_url(where, url)
    for key, of in (("environment", command), ("directory", command), ("headers", url)):
        if key in table and not of:
            raise ValueError(f"{where}: {key} goes with {'url' if key == 'headers' else 'command'}")
    seconds = number(where, table, "timeout_seconds", TOOL_CALL_MS_DEFAULT / 1000, (
        0.001, TOOL_CALL_MS_MAX / 1000))  # fmt: skip
    at_once = number(where, table, "calls_at_once", TOOL_CALLS_AT_ONCE_DEFAULT, (
        1, TOOL_CALLS_AT_ONCE_MAX))  # fmt: skip
    directory = table.get("directory")
    if not isinstance(directory, str | None):
        raise ValueError(f"{where}: directory must be text")
    return ToolServerOptions(
        name=name,
        command=command,
        url=url,
        tenants=frozenset(texts(where, table, "tenants")),
        environment=_strings(where, table, "environment"),
        directory=Path(directory) if directory is not None else None,
        headers=_strings(where, table, "headers"),
        timeout_ms=round(seconds * 1000),
        calls_at_once=int(at_once),
    )


def _check_url(where: str, url: Any) -> None:
    try:
        parsed = URL(url)
        good = parsed.scheme in ("http", "https") and bool(parsed.host)
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ValueError(f"{where}: url must be http://... or https://...")


# --- Values --------------------------------------------------------------------------------------
def check_keys(where: str, table: Any, known: set[str]) -> None:
    """Raise ValueError unless a table has known keys only."""
    if not isinstance(table, dict):
        raise ValueError(f"{where} must be a table")
    for key in table:
        if key not in known:
            raise ValueError(f"{where}: no option is called {key!r}")


def texts(where: str, table: dict[str, Any], key: str) -> tuple[str, ...]:
    """Return a list of texts; ValueError."""
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(item, str) and item for item in found):
        raise ValueError(f"{where}: {key} must be a list of texts")
    return tuple(found)


def number(
    where: str, table: dict[str, Any], key: str, default: float, bounds: tuple[float, float]
) -> float:
    """Return a number within bounds; ValueError."""
    found = table.get(key, default)
    low, high = bounds
    if type(found) not in (int, float) or not low <= found <= high:
        raise ValueError(f"{where}: {key} must be from {low} to {high}")
    return float(found)


def _strings(where: str, table: dict[str, Any], key: str) -> dict[str, str]:
    found = table.get(key, {})
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError(f"{where}: {key} must be a table of texts")
    return dict(found)
