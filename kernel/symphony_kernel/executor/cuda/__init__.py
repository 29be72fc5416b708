"""The executor on a GPU: FlashInfer, CUDA graphs, and pages that move beside the steps."""
