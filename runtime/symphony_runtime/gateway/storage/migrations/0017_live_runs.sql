-- Whether a program has live runs: asked for each version of a name.
CREATE INDEX runs_live_by_program ON runs (tenant, program) WHERE status IN ('queued', 'running');
