"""The executor on a GPU: FlashInfer, CUDA graphs, and moves of pages during steps."""
