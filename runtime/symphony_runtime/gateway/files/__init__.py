"""Files of tenants, as OpenAI's files: inputs and results of batches. They are in the database."""
