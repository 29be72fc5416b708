"""What runs batches: the Executor interface and its implementations."""
