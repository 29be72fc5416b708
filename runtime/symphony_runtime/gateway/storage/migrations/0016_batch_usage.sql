-- The tokens of a batch's answers: JSON [prompt, cached, completion, reasoning].
ALTER TABLE batches ADD COLUMN usage TEXT NOT NULL DEFAULT '[0, 0, 0, 0]';
