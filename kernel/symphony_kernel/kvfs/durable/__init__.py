"""Durable names: what of KVFS outlives the kernel, and how it lies on disk.

    format      one file: tokens, positions, lineage, K and V, and whose and of which model they are
    directory   all files of a server; each name is the old file or the new one at any instant

Everything here blocks and runs in threads; `kvfs.names` and what is above it never wait for it.
"""

from symphony_kernel.kvfs.durable.directory import Directory, Found
from symphony_kernel.kvfs.durable.format import (
    Content,
    FormatError,
    Identity,
    Label,
    OtherModelError,
)

__all__ = [
    "Content",
    "Directory",
    "FormatError",
    "Found",
    "Identity",
    "Label",
    "OtherModelError",
]
