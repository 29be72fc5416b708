-- The language of a program that was uploaded as source; 'wasm': it was uploaded as a module.
ALTER TABLE programs ADD COLUMN language TEXT NOT NULL DEFAULT 'wasm';
