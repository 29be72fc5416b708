"""Kernels in Triton, for GPUs without FlashInfer (docs/how-it-works/gpu.md)."""
