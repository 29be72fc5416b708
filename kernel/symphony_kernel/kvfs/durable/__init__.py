"""Durable files: named KV files that outlive the kernel, and how they lie on disk.

    names       writes and reads named files: what a name's calls wait for, and in which order
    transfers   KV files on their way to and from the gateway, piece by piece
    disk        blocking calls in threads; background tasks
    directory   all files of a server; each name is the old file or the new one at any instant
    format      one file: tokens, positions, lineage, K and V, its owner and its model

`directory` and `format` block and run in threads. Nothing on the event loop waits for them.
"""
