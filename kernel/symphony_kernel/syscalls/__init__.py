"""Syscalls: what each operation that a worker sends checks and does.

    table            operation -> handler
    validation       arguments, checked before anything happens
    dispatch         timed calls; calls of a tenant over its share wait
    pending          calls in the queue of a file: `pred`, `generate`, edits
    run_ahead        how far a generation has come, and whether its next step may start
    names            calls on names, for programs and the gateway
    file_requests    the gateway's requests on KV files: remove, send, take
    durable_names    the threads, the device and the clock behind durable names
    grammar          calls on constraints

Handlers check what a guest or a worker says. The packages below trust their arguments and assert.
"""
