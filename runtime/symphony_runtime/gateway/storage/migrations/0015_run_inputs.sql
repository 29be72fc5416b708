-- What a run was given, so that it can be run again, and what its programs spawned.
CREATE TABLE run_inputs (
    run INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;
CREATE TABLE run_children (
    run INTEGER PRIMARY KEY,
    body BLOB NOT NULL                -- JSON, see `children.Children.view`
) STRICT;
-- The limit that ended a run, so that listings can ask for it.
ALTER TABLE runs ADD COLUMN limit_hit TEXT;
UPDATE runs SET limit_hit = CASE
    WHEN reason LIKE 'cpu time limit%' THEN 'cpu_ms'
    WHEN reason LIKE 'wall time limit%' THEN 'wall_ms'
    WHEN reason LIKE 'the run took longer%' THEN 'wall_ms'
    WHEN reason LIKE 'memory limit: it and its children%' THEN 'tree_memory_bytes'
    WHEN reason LIKE 'memory limit: the tenant''s programs%' THEN 'memory_total_bytes'
    WHEN reason LIKE 'memory limit%' THEN 'memory_bytes'
    WHEN reason LIKE 'table limit: resource limit exceeded: table count%' THEN 'tables'
    WHEN reason LIKE 'table limit%' THEN 'table_elements'
    WHEN reason LIKE 'the run has used up%' THEN 'tokens'
    WHEN reason LIKE 'output limit%' THEN 'output_bytes'
    WHEN reason LIKE 'message limit%' THEN 'messages'
    WHEN reason LIKE 'disk limit%' THEN 'disk_bytes'
    WHEN reason LIKE 'stack overflow%' THEN 'stack_bytes'
END WHERE status IN ('killed', 'trapped');
