-- What an ended run keeps, of its events and itself: retention counts it.
ALTER TABLE runs ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_by_end ON runs (ended_ms) WHERE ended_ms IS NOT NULL;
UPDATE runs SET bytes = 512 + (
    SELECT COALESCE(SUM(LENGTH(body)), 0) FROM run_events WHERE run = seq
) WHERE ended_ms IS NOT NULL;
