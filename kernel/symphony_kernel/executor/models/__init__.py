"""Models in Hugging Face layout: what their files say, and their weights.

file_reader, checking        reads of bounded size; a folder is checked before it is loaded
config, shapes               config.json, and the tensors that follow from it
tensor_headers, loader       safetensors files, one or sharded
weights, quantization, rope  what networks are made of
assets                       tokenizer, chat template, special tokens
"""
