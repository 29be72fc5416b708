-- Files that tenants upload, and batches of requests: see `files.records` and `batches.records`.
CREATE TABLE files (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    status TEXT NOT NULL,             -- 'uploading', 'growing' (of a batch), 'processed', 'deleted'
    boot INTEGER NOT NULL,            -- number of the gateway's start that uploads it
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER                -- NULL: never
) STRICT;
CREATE INDEX files_by_tenant ON files (tenant, created_ms, id);
CREATE INDEX files_by_status ON files (status, boot);
CREATE INDEX files_by_end ON files (expires_ms) WHERE expires_ms IS NOT NULL;
CREATE TABLE file_parts (
    file TEXT NOT NULL,
    at INTEGER NOT NULL,              -- offset of the first byte of body
    body BLOB NOT NULL,
    PRIMARY KEY (file, at)
) STRICT;
CREATE TABLE file_counts (
    tenant TEXT PRIMARY KEY,
    files INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;
CREATE TABLE batches (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    boot INTEGER NOT NULL,            -- number of the gateway's start that owns it
    version INTEGER NOT NULL,         -- number of its last change by the owner
    status TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    input_file TEXT NOT NULL,
    output_seconds INTEGER,           -- for which its results are kept; NULL: until deleted
    expires_ms INTEGER NOT NULL,
    metadata TEXT NOT NULL,           -- JSON
    times TEXT NOT NULL,              -- JSON {"in_progress_at": seconds, ...}
    errors TEXT NOT NULL,             -- JSON [{code, message, param, line}]
    output_bytes INTEGER NOT NULL,
    error_bytes INTEGER NOT NULL,
    total INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    line INTEGER NOT NULL,            -- the first line without a result, from 1
    start INTEGER NOT NULL,           -- its offset in the input file
    done TEXT NOT NULL,               -- JSON: the numbers of later lines with a result
    resumes INTEGER NOT NULL          -- how often it was resumed since its last result
) STRICT;
CREATE INDEX batches_by_tenant ON batches (tenant, created_ms, id);
CREATE INDEX batches_by_status ON batches (status);
