-- What `http` puts into headers for a tenant's programs, who never see it: see `vault`.
CREATE TABLE secrets (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB NOT NULL,              -- nonce and ciphertext of AES-256-GCM
    hosts TEXT NOT NULL,              -- JSON: where it may go
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT;
