-- When a run was last started from a program, or its bytes last came; NULL: nobody has noted it yet.
ALTER TABLE programs ADD COLUMN used_ms INTEGER;
