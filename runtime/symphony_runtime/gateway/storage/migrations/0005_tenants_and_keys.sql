-- What operators say of tenants, and who may do what with which key.
ALTER TABLE tenants ADD COLUMN suspended_ms INTEGER;                 -- NULL: it is not
ALTER TABLE tenants ADD COLUMN weight REAL;                          -- NULL: as the options say
ALTER TABLE tenants ADD COLUMN quotas TEXT NOT NULL DEFAULT '{}';    -- JSON {name: number}
ALTER TABLE keys ADD COLUMN role TEXT NOT NULL DEFAULT 'tenant';     -- 'admin', 'tenant', 'read-only'
UPDATE keys SET role = 'admin' WHERE tenant IS NULL;
ALTER TABLE keys ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE keys ADD COLUMN expires_ms INTEGER;                      -- NULL: never
CREATE TABLE tenant_usage (
    tenant TEXT NOT NULL,
    day TEXT NOT NULL,                -- YYYY-MM-DD in UTC, on which the runs ended
    runs INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cpu_ms INTEGER NOT NULL,
    wall_ms INTEGER NOT NULL,
    kv_token_ms INTEGER NOT NULL,
    syscalls INTEGER NOT NULL,
    PRIMARY KEY (day, tenant)
) STRICT, WITHOUT ROWID;
CREATE TABLE audit (
    at_ms INTEGER NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,               -- 'admin' or 'denied'
    key TEXT,                         -- the part that may be seen; NULL: of no known key
    tenant TEXT,                      -- whose key it is; NULL: an operator's, or nobody's
    address TEXT NOT NULL,            -- where the request came from
    action TEXT NOT NULL,             -- the route's name in the OpenAPI document
    target TEXT NOT NULL,             -- its path
    status INTEGER NOT NULL,          -- of the answer
    detail TEXT NOT NULL,
    times INTEGER NOT NULL,           -- so many alike, from at_ms on
    PRIMARY KEY (at_ms, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_by_kind ON audit (kind, at_ms, id);
