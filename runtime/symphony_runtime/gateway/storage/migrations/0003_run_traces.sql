CREATE TABLE run_traces (
    run INTEGER PRIMARY KEY,
    body BLOB NOT NULL                -- see `trace.RunTrace.pack`
) STRICT;
-- only: sqlite
CREATE TRIGGER run_traces_go AFTER DELETE ON runs BEGIN
    DELETE FROM run_traces WHERE run = OLD.seq;
END;
