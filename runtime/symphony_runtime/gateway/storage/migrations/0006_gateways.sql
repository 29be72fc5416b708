-- Several gateways may share a database.
CREATE TABLE gateways (
    boot INTEGER PRIMARY KEY,         -- number of a gateway's start: the upper half of its runs' seq
    name TEXT NOT NULL,               -- of its data directory
    started_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE program_bytes (          -- of modules, where a gateway has to find another's uploads
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('changes', 0);  -- see `peers`
