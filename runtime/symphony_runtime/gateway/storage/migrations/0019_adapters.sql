-- LoRA adapters by their names. The bytes of adapter_model.safetensors are those of `file`.
CREATE TABLE adapters (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,             -- SHA-256 of both files, in hex
    file TEXT NOT NULL,
    config TEXT NOT NULL,             -- adapter_config.json
    bytes INTEGER NOT NULL,           -- of the file
    rank INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT;
