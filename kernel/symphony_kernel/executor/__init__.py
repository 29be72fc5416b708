"""Executors: what runs batches on a device. `base` is the contract.

base            Executor, Pages, Batch, Row: what the kernel needs from a device
torch_executor  a model on a CPU or a GPU; network: what computes its steps
simulated       a cost model instead of a device
device_queue    the device's thread and the futures of its results
chained_batch   batches that follow another one
sampling        from logits to results; bitmask: the tokens that constraints allow
reference/, native/, cuda/, parallel/   implementations of `network`
models/         model directories: config, weights, tokenizer
"""
