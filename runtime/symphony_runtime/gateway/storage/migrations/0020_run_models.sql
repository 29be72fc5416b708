-- The model of a run: '' for runs of servers that did not note it.
ALTER TABLE runs ADD COLUMN model TEXT NOT NULL DEFAULT '';
