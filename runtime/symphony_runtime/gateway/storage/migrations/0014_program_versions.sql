-- Versions of a name: the programs that it has pointed at. `program_names` has the one of now.
CREATE TABLE program_versions (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    program TEXT NOT NULL,
    added_ms INTEGER NOT NULL,        -- when it was last uploaded under the name
    turn INTEGER NOT NULL,            -- their order: of uploads, not of rollbacks
    PRIMARY KEY (tenant, name, program)
) STRICT;
CREATE INDEX program_versions_by_program ON program_versions (tenant, program);
CREATE INDEX program_names_by_program ON program_names (tenant, program);
INSERT INTO program_versions SELECT tenant, name, program, named_ms, turn FROM program_names;
-- Runs that have ended, and those that a fault or a limit ended: see `programs.usage`.
ALTER TABLE programs ADD COLUMN runs INTEGER NOT NULL DEFAULT 0;
ALTER TABLE programs ADD COLUMN errors INTEGER NOT NULL DEFAULT 0;
