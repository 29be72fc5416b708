"""GGUF files, the format of llama.cpp: what they say, as files of Hugging Face's layout.

container   the file's structure: values, and where each tensor lies
settings    config.json and the other settings that follow from the values
tokenizer   tokenizer.json, from the vocabulary
tensors     the tensors by their names in checkpoints
blocks      the values of quantized blocks

The package `gguf` has a reader, too. It is not used: with a claimed length past the end of the
file, it appends empty values without end.
"""
