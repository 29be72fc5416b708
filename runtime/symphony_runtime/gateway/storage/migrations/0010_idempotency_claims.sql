-- How many keys a tenant has, so that nobody has to count them; and which start of a gateway is at
-- what a key is for (`gateways.boot`).
CREATE TABLE idempotency_counts (
    tenant TEXT PRIMARY KEY,
    keys INTEGER NOT NULL
) STRICT;
INSERT INTO idempotency_counts (tenant, keys)
    SELECT tenant, COUNT(*) FROM idempotency GROUP BY tenant;
ALTER TABLE idempotency ADD COLUMN boot INTEGER NOT NULL DEFAULT 0;
CREATE INDEX idempotency_by_time ON idempotency (created_ms);
