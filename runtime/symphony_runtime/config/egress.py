"""The tables `tools` and `http` of symphony.toml: what programs of which tenants may reach.

[tools.weather]                        # an MCP server; programs call weather.forecast
command = ["python", "weather.py"]     # started by the gateway; or url = "https://.../mcp"
tenants = ["default"]                  # the tenants that may use it; none by default
environment = {API_KEY = "..."}        # in addition to PATH, HOME and the like
directory = "tools"                    # its working directory; relative to the file
headers = {Authorization = "..."}      # sent to `url`
timeout_seconds = 60                   # of one call
calls_at_once = 16                     # of one tenant; more calls wait
trace_context = true                   # calls name their span (--otlp); false by default

[[http]]                               # URLs that programs may request
tenants = ["default"]
urls = ["https://api.example.com/v1/", "https://*.example.org"]
methods = ["GET", "HEAD"]              # these by default
networks = ["10.1.2.0/24"]             # private addresses that these names may have
trace_context = true                   # as of a tool server
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from symphony_kernel.protocol import limits as n
from yarl import URL

from symphony_runtime.validation import StrictModel, check_table

_SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_METHOD = re.compile(r"[A-Z]{1,20}")
# A server may read a path differently than we do: some take an encoded slash for a slash, and some
# drop what follows a semicolon, so that "..;x" is the parent folder.
_HIDDEN = re.compile(r"%2F|%5C|/(?:\.|%2E){1,2}(?:;|%3B)", re.IGNORECASE)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
ANY_TENANT = "*"  # in `tenants`
_Text = Annotated[str, Field(min_length=1)]
_Texts = Annotated[tuple[_Text, ...], Field(strict=False)]
_Names = Annotated[frozenset[_Text], Field(strict=False)]


class _ToolsTable(StrictModel):
    """A table `tools.NAME`."""

    command: _Texts = ()
    url: str = ""
    tenants: _Names = frozenset()
    environment: dict[str, str] = Field(default_factory=dict, repr=False)
    directory: Annotated[Path, Field(strict=False)] | None = None
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    timeout_seconds: float = Field(
        n.TOOL_CALL_MS_DEFAULT / 1000, ge=0.001, le=n.TOOL_CALL_MS_MAX / 1000
    )
    calls_at_once: int = Field(n.TOOL_CALLS_AT_ONCE_DEFAULT, ge=1, le=n.TOOL_CALLS_AT_ONCE_MAX)
    trace_context: bool = False


class _HttpTable(StrictModel):
    """A table `http`."""

    tenants: _Names = frozenset()
    urls: _Texts = ()
    methods: _Texts = ()
    networks: _Texts = ()
    trace_context: bool = False


class ToolServerOptions(_ToolsTable):
    """One MCP server: the `command` that starts it, or its `url`."""

    name: str

    @property
    def timeout_ms(self) -> int:
        return round(self.timeout_seconds * 1000)

    def serves(self, tenant: str) -> bool:
        return tenant in self.tenants or ANY_TENANT in self.tenants


@dataclass(frozen=True, slots=True)
class UrlPattern:
    """URLs of one origin whose path has a prefix."""

    scheme: str
    host: str
    port: int
    path: str  # ends with a slash, or is "" for any
    below: bool = False  # names below `host`, not itself

    def covers(self, url: URL) -> bool:
        """Whether it includes a URL, which is absolute and normalised."""
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
    """The requests that some tenants may make."""

    tenants: frozenset[str]
    urls: tuple[UrlPattern, ...]
    methods: frozenset[str]
    networks: tuple[Network, ...] = ()
    trace_context: bool = False  # requests carry `traceparent`

    def serves(self, tenant: str) -> bool:
        return tenant in self.tenants or ANY_TENANT in self.tenants

    def covers(self, url: URL) -> bool:
        return any(pattern.covers(url) for pattern in self.urls)


def parse_http(values: Any) -> tuple[HttpRule, ...]:
    """Return the rules in the tables `http`. ValueError: the message is for the operator."""
    if not isinstance(values, list):
        raise ValueError("http must be a list of tables: [[http]]")
    if len(values) > n.HTTP_RULES_MAX:
        raise ValueError(f"http: at most {n.HTTP_RULES_MAX} tables")
    return tuple(_rule(f"http, number {number}", table) for number, table in enumerate(values, 1))


def _rule(where: str, table: Any) -> HttpRule:
    wanted = check_table(_HttpTable, table, where)
    patterns = tuple(_pattern(where, text) for text in wanted.urls)
    if not patterns:
        raise ValueError(f"{where}: urls must name one URL at least")
    for method in wanted.methods:
        if not _METHOD.fullmatch(method) or method in ("CONNECT", "TRACE"):
            raise ValueError(f"{where}: {method!r} is no method that programs may use")
    networks = [_network(where, text) for text in wanted.networks]
    # An address in a URL is allowed even where it is not public.
    networks += [_network(where, p.host) for p in patterns if _is_address(p.host)]
    return HttpRule(
        tenants=wanted.tenants,
        urls=patterns,
        methods=frozenset(wanted.methods or ("GET", "HEAD")),
        networks=tuple(networks),
        trace_context=wanted.trace_context,
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
    """Return the servers in the table `tools`. ValueError: the message is for the operator."""
    if not isinstance(values, dict):
        raise ValueError("tools must be a table of servers")
    if len(values) > n.TOOL_SERVERS_MAX:
        raise ValueError(f"tools: at most {n.TOOL_SERVERS_MAX} servers")
    return tuple(_server(name, table) for name, table in values.items())


def _server(name: str, table: Any) -> ToolServerOptions:
    where = f"tools.{name}"
    if not _SERVER_NAME.fullmatch(name):
        raise ValueError(f"{where}: a server's name has letters, digits, - and _")
    wanted = check_table(_ToolsTable, table, where)
    if bool(wanted.command) == bool(wanted.url):
        raise ValueError(f"{where}: it needs either a command or a url")
    if wanted.url:
        _check_url(where, wanted.url)
    needed = {"environment": "command", "directory": "command", "headers": "url"}
    for key in needed.keys() & wanted.model_fields_set:
        if not getattr(wanted, needed[key]):
            raise ValueError(f"{where}: {key} goes with {needed[key]}")
    return ToolServerOptions(name=name, **dict(wanted))


def _check_url(where: str, url: str) -> None:
    try:
        parsed = URL(url)
        good = parsed.scheme in ("http", "https") and bool(parsed.host)
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{where}: url must be http://... or https://...")
