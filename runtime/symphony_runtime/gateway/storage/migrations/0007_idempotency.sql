-- Requests that may come twice: see `idempotency`.
CREATE TABLE idempotency (
    tenant TEXT NOT NULL,
    key BLOB NOT NULL,                -- SHA-256 of the header
    digest BLOB NOT NULL,             -- SHA-256 of what was asked
    outcome TEXT NOT NULL,            -- the id of what is to come of it
    done INTEGER NOT NULL,            -- 1: it has come of it
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT;
CREATE INDEX idempotency_by_age ON idempotency (tenant, created_ms);
