"""Syscalls: what each operation that a worker sends checks and does.

    table            operation -> handler
    validation       arguments, checked before anything happens
    dispatch         timed calls; calls of a throttled tenant wait
    pending          calls in the queue of a file: `pred`, `generate`, edits
    names            calls on names, for programs and the gateway
    file_requests    the gateway's requests on KV files: remove, send, take
    durable_names    the threads, the device and the clock behind durable names
    grammar          calls on constraints

Handlers check what a guest or a worker sends. The packages below trust their arguments and assert.
"""
