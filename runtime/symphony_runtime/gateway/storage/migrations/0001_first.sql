CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE tenants (
    id TEXT PRIMARY KEY,
    made_by TEXT NOT NULL,            -- 'first start' or 'operator'
    created_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE keys (
    id TEXT PRIMARY KEY,              -- the part of the key that may be seen
    tenant TEXT,                      -- NULL: an operator's
    hash BLOB NOT NULL,               -- SHA-256 of the whole key
    created_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE programs (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,                 -- sha256:<hex of the bytes>
    size INTEGER NOT NULL,
    imports TEXT NOT NULL,            -- JSON
    exports TEXT NOT NULL,            -- JSON
    entries TEXT NOT NULL,            -- JSON
    compiler TEXT NOT NULL,           -- identity of the compiler that made the artefact
    artefact_hash BLOB NOT NULL,      -- SHA-256: no other artefact is ever loaded
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT;
CREATE TABLE program_names (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    program TEXT NOT NULL,
    named_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT;
CREATE TABLE runs (
    seq INTEGER PRIMARY KEY,          -- the instance id: grows, is never used again
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    program TEXT NOT NULL,
    program_name TEXT,
    entry TEXT NOT NULL,
    status TEXT NOT NULL,
    exit_code INTEGER,
    reason TEXT NOT NULL,
    priority INTEGER NOT NULL,
    limits TEXT NOT NULL,             -- JSON
    usage TEXT,                       -- JSON
    created_ms INTEGER NOT NULL,
    ended_ms INTEGER
) STRICT;
CREATE INDEX runs_by_tenant ON runs (tenant, seq);
CREATE INDEX runs_live ON runs (status) WHERE status IN ('queued', 'running');
CREATE TABLE run_events (
    run INTEGER NOT NULL,
    first INTEGER NOT NULL,           -- id of the first event in body
    body BLOB NOT NULL,               -- msgpack [[kind, data], ...]
    PRIMARY KEY (run, first)
) STRICT, WITHOUT ROWID;
