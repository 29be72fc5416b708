"""Communication of ranks while they compute: sums, and gathered logits.

NCCL between GPUs, gloo between processes on CPUs. Ranks find each other through a file in a private
directory. The sockets of gloo, and those by which NCCL's ranks find each other, are on the loopback
interface.
"""

# ruff: noqa: SLF001 - gloo's interface can be set by an option without a public name only, or by a
# variable of the whole process.

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import FileStore

# Ranks meet when all have loaded their shares. In a step only a dead rank makes others wait so
# long.
_JOIN_SECONDS_MAX = 120
_LOOPBACK = "lo"


class Group:
    """One rank's side of the group. All ranks make the same calls in the same order."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._backend: Any = None

    def join(self, meeting: Path, rank: int, device: torch.device) -> None:
        """Meet the other ranks at a private path; return when all are there."""
        store = FileStore(str(meeting), self._ranks)
        patience = timedelta(seconds=_JOIN_SECONDS_MAX)
        if device.type == "cuda":
            os.environ.setdefault("NCCL_SOCKET_IFNAME", _LOOPBACK)  # only this library reads it
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = patience
            self._backend = dist.ProcessGroupNCCL(store, rank, self._ranks, nccl)
        else:
            gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            gloo._timeout = patience
            gloo._devices = [dist.ProcessGroupGloo.create_device(interface=_LOOPBACK)]
            self._backend = dist.ProcessGroupGloo(store, rank, self._ranks, gloo)
        # NCCL connects at the first call.
        self.reduce(torch.ones(1, device=device))

    def reduce(self, parts: Tensor) -> None:
        """Add up all ranks' tensors, in place on each rank."""
        self._backend.allreduce([parts]).wait()

    def gather(self, part: Tensor, width: int) -> Tensor:
        """Return the first `width` columns of all ranks' [n, m], next to each other."""
        # gloo's threads write the parts outside of inference mode
        with torch.inference_mode(False):
            parts = [torch.empty_like(part) for _ in range(self._ranks)]
        self._backend.allgather([parts], [part.contiguous()]).wait()
        return torch.cat(parts, dim=1)[:, :width]
