-- What a program says of itself, from its custom section symphony.manifest: JSON, '' for nothing.
ALTER TABLE programs ADD COLUMN manifest TEXT NOT NULL DEFAULT '';
