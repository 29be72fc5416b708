"""Durable names: what of KVFS outlives the kernel, and how it lies on disk.

    names       saves, removals and loads in order, and what waits for them
    disk_io     what blocks, done in threads; background: tasks that nothing awaits
    transfers   KV files on their way to and from the gateway, piece by piece
    directory   all files of a server; each name is the old file or the new one at any instant
    format      one file: tokens, positions, lineage, K and V, and whose and of which model they are

`directory` and `format` block and run in threads. Nothing on the event loop waits for them.
"""
