"""The two-level scheduler: who may run (fair_queue), and what runs now (batcher)."""
