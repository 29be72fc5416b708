"""Executors: what runs batches on a device. `base` is the contract.

base            Executor, Batch, Row: what the kernel asks of a device
torch_executor  a model on a CPU or a GPU; network: what computes its steps
simulated       a cost model instead of a device
device_queue    the device's thread and its results; chained_batch: batches that follow another
sampling, bitmask   from logits to answers, under constraints
reference/ native/ cuda/ parallel/   implementations of `network`
models/             model folders: config, weights, tokenizer
"""
