"""What a server answers, as types. Made by `python -m tools.client_types`: do not edit.

They are the schemas of the server's OpenAPI document. A newer server may send more members.
"""

from typing import Any, Literal, NotRequired, TypedDict


class Progress(TypedDict):
    what: str
    share: float


class Role(TypedDict):
    role: str
    pid: int | None
    ready: bool
    progress: NotRequired[Progress]
    hangs: NotRequired[Literal[True]]
    containment: NotRequired[dict[str, str]]


class Readiness(TypedDict):
    roles: list[Role]
    missing: list[str]
    degraded: list[str]


class Program(TypedDict):
    id: str
    name: str | None
    language: str  # of its source; wasm: it is a module
    size: int
    created_ms: int
    imports: list[str]
    exports: list[str]
    entries: list[str]
    description: str | None
    input_schema: dict[str, Any] | None  # a JSON schema, of the manifest
    output_schema: dict[str, Any] | None  # a JSON schema, of the manifest


class ProgramVersion(TypedDict):
    id: str
    name: str | None
    language: str  # of its source; wasm: it is a module
    size: int
    created_ms: int
    imports: list[str]
    exports: list[str]
    entries: list[str]
    description: str | None
    input_schema: dict[str, Any] | None  # a JSON schema, of the manifest
    output_schema: dict[str, Any] | None  # a JSON schema, of the manifest
    current: bool  # whether the name points at it
    added_ms: int
    runs: int
    errors: int
    used_ms: int | None


class RunLimits(TypedDict):
    wall_ms: NotRequired[int]
    cpu_ms: NotRequired[int]
    memory_bytes: NotRequired[int]
    tree_memory_bytes: NotRequired[int]
    table_elements: NotRequired[int]
    tokens: NotRequired[int]
    kv_tokens: NotRequired[int]
    handles: NotRequired[int]
    tickets: NotRequired[int]
    result_bytes: NotRequired[int]
    output_bytes: NotRequired[int]
    messages: NotRequired[int]
    log_bytes: NotRequired[int]
    inbox_bytes: NotRequired[int]
    children: NotRequired[int]
    child_depth: NotRequired[int]
    channels: NotRequired[int]


class RunUsage(TypedDict):
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cpu_ms: int
    wall_ms: int
    kv_token_ms: int
    syscalls: int
    peak_memory_bytes: int


class Held(TypedDict):
    tokens: int
    kv_pages: int
    instances: int


class Run(TypedDict):
    id: str
    program: str
    entry: str
    reason: str
    program_name: str | None
    error: str | None
    model: str | None  # the model that it runs on
    exit_code: int | None
    ended_ms: int | None
    priority: int
    created_ms: int
    status: Literal["queued", "running", "ending", "exited", "trapped", "killed", "failed"]
    limits: RunLimits
    limit: str | None  # the limit that has ended it
    waits_for: str | None  # the limit that holds it up
    usage: RunUsage | None
    held: NotRequired[Held | None]


class Base64(TypedDict):
    base64: str


class RunResult(TypedDict):
    id: str
    program: str
    entry: str
    reason: str
    program_name: str | None
    error: str | None
    model: str | None  # the model that it runs on
    exit_code: int | None
    ended_ms: int | None
    priority: int
    created_ms: int
    status: Literal["queued", "running", "ending", "exited", "trapped", "killed", "failed"]
    limits: RunLimits
    limit: str | None  # the limit that has ended it
    waits_for: str | None  # the limit that holds it up
    usage: RunUsage | None
    output: NotRequired[str]
    messages: NotRequired[list[str | Base64]]
    held: NotRequired[Held | None]


class Child(TypedDict):
    program: str
    status: str
    reason: str
    number: int
    created_ms: int
    program_name: str | None
    entry: str | None
    parent: int | None
    exit_code: int | None
    ended_ms: int | None
    usage: RunUsage | None


class ChildList(TypedDict):
    data: list[Child]
    left_out: int


class Trace(TypedDict):
    traceEvents: list[dict[str, Any]]
    displayTimeUnit: str
    otherData: dict[str, Any]


class Bound(TypedDict):
    default: int | None
    maximum: int | None
    of: Literal["program", "run", "instance", "tenant"]


class Limits(TypedDict):
    limits: dict[str, Bound]


class Secret(TypedDict):
    name: str
    hosts: list[str]
    created_ms: int
    updated_ms: int


class Adapter(TypedDict):
    name: str
    id: str
    model: str
    bytes: int
    rank: int
    created_ms: int


class KvFile(TypedDict):
    path: str
    len: int
    pages: int
    tier: str  # the slowest that holds one of its pages
    durable: bool
    public: bool
    expires_ms: int  # Unix time; 0: never
    shared: NotRequired[int]  # pages that other files share
    tiers: NotRequired[dict[str, int]]
    disk_bytes: NotRequired[int]


class LineagePart(TypedDict):
    first: int
    len: int
    of: int
    tree: bool
    lost: bool


class Lineage(TypedDict):
    len: int
    computed: int
    spans: int
    scratch_pages: int
    lost: bool
    parts: list[LineagePart]


class PageRange(TypedDict):
    first: int  # its first page
    pages: int
    tier: Literal["device", "host", "disk", "tokens"]
    holders: int  # other files that hold each page
    cached: bool  # in the prefix cache
    files: list[str]  # named files of the tenant among the holders


class KvPages(TypedDict):
    path: str
    len: int
    pages: int
    tier: str  # the slowest that holds one of its pages
    durable: bool
    public: bool
    expires_ms: int  # Unix time; 0: never
    shared: int  # pages that other files share
    tiers: dict[str, int]
    disk_bytes: int
    page_tokens: int  # entries of a page
    recomputable: bool
    lineage: Lineage | None
    data: list[PageRange]
    next: str | None
    complete: bool  # all of the tenant's named files were compared


class KvTokens(TypedDict):
    path: str
    len: int
    first: int
    tokens: list[int]
    positions: list[int]
    texts: list[str] | None
    next: str | None


class PrefixPart(TypedDict):
    id: int
    parent: int | None
    first: int
    pages: int
    hits: int  # matches that used its pages
    tier: Literal["device", "host", "disk", "tokens"]
    more: int  # branches below that are not shown
    tokens: list[int]
    text: str | None


class Prefixes(TypedDict):
    pages: int  # cached pages of the tenant
    page_tokens: int
    complete: bool  # all of them are counted
    data: list[PrefixPart]


class Tenant(TypedDict):
    id: str
    made_by: str
    created_ms: int
    keys: int
    live_runs: int
    suspended: bool
    suspended_ms: int | None
    weight: float | None
    quotas: dict[str, int]


class Key(TypedDict):
    id: str
    name: str
    tenant: str | None
    role: Literal["admin", "tenant", "read-only"]
    created_ms: int
    expires_ms: int | None


class NewKey(TypedDict):
    id: str
    name: str
    tenant: str | None
    role: Literal["admin", "tenant", "read-only"]
    created_ms: int
    expires_ms: int | None
    key: str  # shown this once


class Gateway(TypedDict):
    id: str
    seen_ms: int
    forgetting: list[str]
    here: bool


class Usage(TypedDict):
    tenant: str
    day: str
    runs: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cpu_ms: int
    wall_ms: int
    kv_token_ms: int
    syscalls: int


class Audit(TypedDict):
    id: str
    address: str
    action: str
    target: str
    detail: str
    key: str | None
    tenant: str | None
    at_ms: int
    status: int
    kind: Literal["admin", "denied"]
    times: int  # how many alike, from at_ms on


class Statistics(TypedDict):
    kernel: dict[str, Any]
    gateway: dict[str, Any]
