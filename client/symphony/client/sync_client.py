"""The synchronous client. Made by `python -m tools.sync_client` of the asynchronous one.

Do not edit it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, BinaryIO, Unpack

from symphony.client.async_client import AsyncClient
from symphony.client.events import Event
from symphony.client.places import find_server
from symphony.client.portal import Portal
from symphony.client.programs import Versions
from symphony.client.refusals import ANSWER_BYTES_MAX
from symphony.client.retries import RETRIES_DEFAULT
from symphony.client.runs import Children, RunList, RunOptions
from symphony.client.views import (
    Adapter,
    Audit,
    Gateway,
    Key,
    KvFile,
    KvPages,
    KvTokens,
    Limits,
    NewKey,
    Prefixes,
    Program,
    Role,
    Run,
    RunResult,
    Secret,
    Statistics,
    Tenant,
    Trace,
    Usage,
)
from symphony.client.websocket import AsyncWebSocket


class Programs:
    """Programs by id, name, or name@version: `client.programs`."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def upload(
        self, program: bytes, name: str | None = None, content_type: str = "application/wasm"
    ) -> Program:
        """Upload a program, and point a name at it; return its view.

        `content_type`: of its source, such as "text/javascript"; else it is a module.
        """
        return self._portal.call(lambda client: client.programs.upload(program, name, content_type))

    def get(self, program: str) -> Program:
        return self._portal.call(lambda client: client.programs.get(program))

    def delete(self, program: str) -> None:
        """Delete a program with all names that point at it."""
        self._portal.call(lambda client: client.programs.delete(program))

    def list(self) -> Iterator[Program]:
        """Yield all programs, newest first."""
        return self._portal.iterate(lambda client: client.programs.list())

    def versions(self, name: str) -> Versions:
        """Return the versions of a name, newest first; `current` is the one it points at."""
        return self._portal.call(lambda client: client.programs.versions(name))

    def point(self, name: str, program: str) -> Program:
        """Point a name at a program (an id, a name, or name@version); return its view."""
        return self._portal.call(lambda client: client.programs.point(name, program))

    def rollback(self, name: str, version: str | None = None) -> Program:
        """Point a name at an older version, by default the one before; LookupError: none is."""
        return self._portal.call(lambda client: client.programs.rollback(name, version))

    def delete_version(self, name: str, version: str) -> None:
        """Delete a version that its name does not point at."""
        self._portal.call(lambda client: client.programs.delete_version(name, version))

    def delete_name(self, name: str) -> None:
        """Delete a name with its versions, but for programs that another name has."""
        self._portal.call(lambda client: client.programs.delete_name(name))


class WebSocket:
    """A run's messages, and messages to it: what `client.runs.connect` yields.

    The connection is made with the first use. If it is lost `receive` makes another and continues
    behind the last message that came. A message that was sent when it was lost may or may not have
    come: it is not sent again.
    """

    def __init__(self, portal: Portal, socket: AsyncWebSocket) -> None:
        self._portal = portal
        self._socket = socket

    @property
    def last_id(self) -> int:
        return self._socket.last_id

    @property
    def status(self) -> str | None:
        return self._socket.status

    def send(self, message: str | bytes) -> None:
        """Send a message. ConnectionFailed: the connection is lost, or the run has ended."""
        self._portal.call(lambda _: self._socket.send(message))

    def receive(self) -> bytes | None:
        """Return the next message, None when the run has ended."""
        return self._portal.call(lambda _: self._socket.receive())

    def messages(self) -> Iterator[bytes]:
        """Yield messages until the run has ended."""
        return self._portal.iterate(lambda _: self._socket.messages())

    def close(self) -> None:
        """Close the connection. The run continues."""
        self._portal.call(lambda _: self._socket.close())


class Runs:
    """Runs by id: `client.runs`. The client's `run`, `start` and `stream` start one."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def get(self, run: str) -> RunResult:
        """Return a run with its messages so far."""
        return self._portal.call(lambda client: client.runs.get(run))

    def wait(self, run: str) -> RunResult:
        """Return a run when it has ended."""
        return self._portal.call(lambda client: client.runs.wait(run))

    def list(self, **wanted: str) -> Iterator[Run]:
        """Yield all runs, newest first; `wanted` picks some: program, status, limit_hit."""
        return self._portal.iterate(lambda client: client.runs.list(**wanted))

    def live(self) -> RunList:
        """Return the newest live runs, each with what it holds (`held`)."""
        return self._portal.call(lambda client: client.runs.live())

    def changes(self, after: int = 0, *, follow: bool = True) -> Iterator[Event]:
        """Yield what happens to all runs of the key's tenant, behind a change's id.

        First comes a `begin`, then a `run` for each start, change and end, with the run as listed.
        A `begin` that has not `resumed` means that changes are lost: list the runs again.
        """
        return self._portal.iterate(lambda client: client.runs.changes(after, follow=follow))

    def events(self, run: str, after: int = 0, *, follow: bool = True) -> Iterator[Event]:
        """Yield a run's events after an id: to the last one, or the current ones.

        After a lost connection they continue behind the last one that came.
        """
        return self._portal.iterate(lambda client: client.runs.events(run, after, follow=follow))

    def send(self, run: str, message: str | bytes, *, close: bool = False) -> None:
        """Send a message to a run; `close` ends its input (an empty message is not sent).

        A message whose answer is lost may have come: it is not sent again.
        """
        self._portal.call(lambda client: client.runs.send(run, message, close=close))

    @contextmanager
    def connect(self, run: str, after: int = 0) -> Iterator[WebSocket]:
        """Open a WebSocket for messages both ways, with those behind an event's id.

        Leaving it closes the connection and ends nothing.
        """
        with self._portal.entered(lambda client: client.runs.connect(run, after)) as socket:
            yield WebSocket(self._portal, socket)

    def cancel(self, run: str) -> Run:
        """End a run; return its view."""
        return self._portal.call(lambda client: client.runs.cancel(run))

    def input(self, run: str) -> bytes:
        """Return what a run was given."""
        return self._portal.call(lambda client: client.runs.input(run))

    def rerun(self, run: str, **options: Unpack[RunOptions]) -> str:
        """Start a run's program again with its input, entry, limits and so on; return its id.

        `options` are in place of the run's.
        """
        return self._portal.call(lambda client: client.runs.rerun(run, **options))

    def children(self, run: str) -> Children:
        """Return the children that a run's programs have spawned, in this order."""
        return self._portal.call(lambda client: client.runs.children(run))

    def trace(self, run: str) -> Trace:
        """Return the Chrome trace events of a run that was started with `trace=True`."""
        return self._portal.call(lambda client: client.runs.trace(run))

    def delete(self, run: str) -> None:
        """Delete a run that has ended."""
        self._portal.call(lambda client: client.runs.delete(run))


class Kv:
    """Named KV files by path: `client.kv`."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def list(self, prefix: str = "") -> Iterator[KvFile]:
        """Yield the named KV files whose paths start with `prefix`."""
        return self._portal.iterate(lambda client: client.kv.list(prefix))

    def stat(self, path: str) -> KvFile:
        return self._portal.call(lambda client: client.kv.stat(path))

    def pages(self, path: str) -> KvPages:
        """Return a named KV file with `data`: all its pages, in ranges of equal ones."""
        return self._portal.call(lambda client: client.kv.pages(path))

    def tokens(
        self, path: str, first: int = 0, limit: int = 1024, *, text: bool = False
    ) -> KvTokens:
        """Return tokens of a named KV file with their positions, and with `text` their texts."""
        return self._portal.call(lambda client: client.kv.tokens(path, first, limit, text=text))

    def prefixes(self, limit: int = 50, depth: int = 16, *, text: bool = False) -> Prefixes:
        """Return the tenant's cached prefixes as a tree: parts with their parents and hits."""
        return self._portal.call(lambda client: client.kv.prefixes(limit, depth, text=text))

    def remove(self, path: str) -> None:
        self._portal.call(lambda client: client.kv.remove(path))

    def download(self, path: str) -> BinaryIO:
        """Yield a named KV file (safetensors) in pieces."""
        return self._portal.file(lambda client: client.kv.download(path))

    def upload(
        self,
        path: str,
        file: bytes | IO[bytes],
        *,
        replace: bool = True,
        rebuild: bool | None = None,
        public: bool = False,
        keep_ms: int | None = None,
    ) -> KvFile:
        """Upload a KV file (safetensors) under a durable name; return as `stat`.

        docs/guides/kv-files.md has the meaning of the options.
        """
        return self._portal.call(
            lambda client: client.kv.upload(
                path, file, replace=replace, rebuild=rebuild, public=public, keep_ms=keep_ms
            )
        )


class Adapters:
    """LoRA adapters by name: `client.adapters`."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def list(self) -> Iterator[Adapter]:
        """Yield all adapters, by name."""
        return self._portal.iterate(lambda client: client.adapters.list())

    def get(self, name: str) -> Adapter:
        return self._portal.call(lambda client: client.adapters.get(name))

    def upload(self, name: str, config: str, weights: bytes | IO[bytes]) -> Adapter:
        """Upload an adapter in PEFT's format under a name, in place of one that has it.

        `config` is the text of adapter_config.json, `weights` adapter_model.safetensors.
        """
        return self._portal.call(lambda client: client.adapters.upload(name, config, weights))

    def delete(self, name: str) -> None:
        self._portal.call(lambda client: client.adapters.delete(name))


class Secrets:
    """Secrets by name: `client.secrets`."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def list(self) -> Iterator[Secret]:
        """Yield all secrets, by name, without their values."""
        return self._portal.iterate(lambda client: client.secrets.list())

    def set(self, name: str, value: str, hosts: Sequence[str]) -> Secret:
        """Set a secret, which goes into requests to these hosts only."""
        return self._portal.call(lambda client: client.secrets.set(name, value, hosts))

    def delete(self, name: str) -> None:
        self._portal.call(lambda client: client.secrets.delete(name))


class Admin:
    """Tenants, keys, gateways, usage and the audit log: `client.admin`."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def statistics(self, *, check: bool = False) -> Statistics:
        """Return the counters of kernel and gateway.

        `check` audits the kernel first. A kernel whose audit fails stops: that is a ServerError or
        a ConnectionFailed.
        """
        return self._portal.call(lambda client: client.admin.statistics(check=check))

    def tenants(self) -> Iterator[Tenant]:
        """Yield all tenants, by id."""
        return self._portal.iterate(lambda client: client.admin.tenants())

    def tenant(self, tenant: str) -> Tenant:
        return self._portal.call(lambda client: client.admin.tenant(tenant))

    def create_tenant(self, tenant: str, **fields: Any) -> Tenant:
        """Create a tenant; `fields` are suspended, weight, quotas."""
        return self._portal.call(lambda client: client.admin.create_tenant(tenant, **fields))

    def change_tenant(self, tenant: str, **fields: Any) -> Tenant:
        """Change some `fields` of `create_tenant`; null takes one back."""
        return self._portal.call(lambda client: client.admin.change_tenant(tenant, **fields))

    def delete_tenant(self, tenant: str, *, everything: bool = False) -> None:
        """Delete a tenant that holds nothing, or with `everything` all that it holds too."""
        self._portal.call(lambda client: client.admin.delete_tenant(tenant, everything=everything))

    def keys(self, tenant: str | None) -> list[Key]:
        """Return a tenant's keys, or the operators' (None)."""
        return self._portal.call(lambda client: client.admin.keys(tenant))

    def create_key(self, tenant: str | None, **wanted: Any) -> NewKey:
        """Create a key (`wanted`: role, name, expires_ms); its `key` is returned only now."""
        return self._portal.call(lambda client: client.admin.create_key(tenant, **wanted))

    def rotate_key(self, tenant: str | None, key: str, grace_ms: int = 0) -> NewKey:
        """Replace a key, which stays valid for `grace_ms`; return as `create_key`."""
        return self._portal.call(lambda client: client.admin.rotate_key(tenant, key, grace_ms))

    def revoke_key(self, tenant: str | None, key: str) -> None:
        self._portal.call(lambda client: client.admin.revoke_key(tenant, key))

    def gateways(self) -> Iterator[Gateway]:
        """Yield the gateways that share the server's database."""
        return self._portal.iterate(lambda client: client.admin.gateways())

    def drop_gateway(self, gateway: str) -> None:
        """Forget a gateway that will not return."""
        self._portal.call(lambda client: client.admin.drop_gateway(gateway))

    def usage(self, query: Mapping[str, str] | None = None) -> Iterator[Usage]:
        """Yield what tenants used, by day and tenant; `query` is tenant, from, to."""
        return self._portal.iterate(lambda client: client.admin.usage(query))

    def usage_csv(self, query: Mapping[str, str] | None = None) -> str:
        """Return usage as CSV, with headings."""
        return self._portal.call(lambda client: client.admin.usage_csv(query))

    def audit(self, query: Mapping[str, str] | None = None) -> Iterator[Audit]:
        """Yield the audit log, newest first; `query`: kind, tenant."""
        return self._portal.iterate(lambda client: client.admin.audit(query))


class Client:
    """A connection to one server with one key; also a context manager.

        with Client(url, key) as client:
            program = client.programs.upload(Path("chat.wasm").read_bytes(), name="chat")
            result = client.run(program["id"], input="Hello")
            for event in client.stream("chat", input="Hello"):
                ...

    Threads may share it, and a process that was forked may use it. All else is as of AsyncClient.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        operator: bool = False,
        retries: int = RETRIES_DEFAULT,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        found = find_server(url, key, operator=operator)
        self._portal = Portal(
            lambda: AsyncClient(*found, retries=retries, answer_bytes_max=answer_bytes_max)
        )
        self.programs = Programs(self._portal)
        self.runs = Runs(self._portal)
        self.kv = Kv(self._portal)
        self.adapters = Adapters(self._portal)
        self.secrets = Secrets(self._portal)
        self.admin = Admin(self._portal)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. A client that is dropped closes them, too."""
        self._portal.close()

    @property
    def url(self) -> str:
        """The server's address, without a slash at its end."""
        return self._portal.client.url

    def run(self, program: str, input: Any = "", **options: Unpack[RunOptions]) -> RunResult:
        """Run a program to its end."""
        return self._portal.call(lambda client: client.run(program, input, **options))

    def start(self, program: str, input: Any = "", **options: Unpack[RunOptions]) -> str:
        """Start a run; return its id at once."""
        return self._portal.call(lambda client: client.start(program, input, **options))

    def stream(
        self, program: str, input: Any = "", **options: Unpack[RunOptions]
    ) -> Iterator[Event]:
        """Run a program and yield its events; a lost connection is made again."""
        return self._portal.iterate(lambda client: client.stream(program, input, **options))

    def ready(self) -> tuple[bool, list[Role]]:
        """Return whether a run can start, and the server's roles."""
        return self._portal.call(lambda client: client.ready())

    def limits(self) -> Limits:
        """Return the tenant's limits: default, maximum and of what, by name."""
        return self._portal.call(lambda client: client.limits())

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of the server."""
        return self._portal.call(lambda client: client.openapi())

    def metrics(self) -> str:
        """Return the metrics in Prometheus's text format."""
        return self._portal.call(lambda client: client.metrics())
