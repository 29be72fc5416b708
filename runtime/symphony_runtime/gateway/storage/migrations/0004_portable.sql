-- What SQLite alone has gives way to what every database has.
-- only: sqlite
DROP TRIGGER run_traces_go;
-- Names of one program in the order in which they were given; row numbers said so before.
ALTER TABLE program_names ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
-- only: sqlite
UPDATE program_names SET turn = rowid;
