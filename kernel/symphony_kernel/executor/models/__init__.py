"""Models in Hugging Face layout: what their files say, and their weights.

file_reader, checking        bounded reads of files; the check of a directory before loading
config, shapes               config.json with its families, and the tensors that follow from it
tensor_headers, loader       safetensors files, single or sharded
weights, quantization, rope  the parts of networks
assets                       tokenizer, chat template, special tokens
"""
