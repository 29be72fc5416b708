"""Quantized matrices in safetensors files: AWQ, GPTQ, compressed-tensors and FP8.

stored   a tensor as its file has it
scheme   what config.json says of the quantization
parts    the tensors that make one matrix
values   the matrix
"""
