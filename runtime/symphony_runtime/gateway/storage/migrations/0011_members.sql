-- The gateways of this database, and the tenants that each of them has yet to forget: see `members`.
CREATE TABLE members (
    gateway TEXT PRIMARY KEY,         -- name of its data directory
    boot INTEGER NOT NULL,            -- number of its last start
    seen_ms INTEGER NOT NULL,         -- when it last said that it is there
    dropped_ms INTEGER                -- NULL: it counts; else an operator has said that it is gone
) STRICT;
INSERT INTO members (gateway, boot, seen_ms)
    SELECT name, MAX(boot), MAX(started_ms) FROM gateways GROUP BY name;
CREATE TABLE forgetting (
    tenant TEXT NOT NULL,
    gateway TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, gateway)
) STRICT;
CREATE INDEX forgetting_by_gateway ON forgetting (gateway);
