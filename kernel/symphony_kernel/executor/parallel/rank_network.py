"""One rank's network, and how all ranks start."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from symphony_kernel.executor.cuda.model import CudaDecoder
from symphony_kernel.executor.cuda.network import CudaNetwork
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.loader import Progress, Weights
from symphony_kernel.executor.models.quantization import Quantization
from symphony_kernel.executor.network import Network
from symphony_kernel.executor.parallel.calls import pack
from symphony_kernel.executor.parallel.group import Group
from symphony_kernel.executor.parallel.network import ParallelNetwork
from symphony_kernel.executor.parallel.ranks import Parallel, Ranks, Share
from symphony_kernel.executor.parallel.sharding import Shard, ShardWeights
from symphony_kernel.executor.reference.decoder import Decoder
from symphony_kernel.executor.reference.network import TorchNetwork


def device_of(share: Share) -> torch.device:
    """Return a rank's device; CheckpointError if there is none for it."""
    if share.device == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if share.rank >= count:
        raise CheckpointError(f"{share.ranks} ranks need as many GPUs; torch finds {count} here")
    return torch.device(share.device, share.rank)


def load_share(share: Share, group: Group, progress: Progress | None = None) -> Network:
    """Load a rank's network; it can compute once the group has been joined.

    Raises CheckpointError: the model cannot be divided so, or there is no device for the rank.
    """
    place = device_of(share)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    directory, kind = Path(share.directory), getattr(torch, share.dtype)
    whole = load_config(directory)
    mine = Shard(whole, share.rank, share.ranks)
    with torch.inference_mode(), Weights(directory, whole, kind, place, progress) as weights:
        tensors = ShardWeights(weights, mine)
        reduce, gather = group.reduce, partial(group.gather, width=whole.vocab_size)
        if place.type == "cuda":
            decoder = CudaDecoder(mine.config, tensors, kind, reduce=reduce, gather=gather)
            # Graphs are captured as the network is made, before the ranks meet.
            return CudaNetwork(decoder, share.pages, share.places, graph_rows=())
        quantization = Quantization(share.quantization)
        plain = Decoder(mine.config, tensors, kind, quantization, reduce=reduce, gather=gather)
        return TorchNetwork(plain, share.pages)


def start_parallel(
    share: Share, parallel: Parallel, progress: Progress | None = None
) -> ParallelNetwork:
    """Start the other ranks, load rank 0's `share`, and return the network.

    Called on the thread that will compute; returns when all ranks have met.

    Raises:
        CheckpointError: as in `load_share`, on any rank.
        RankError: a rank ended before they met.
    """
    ranks = Ranks(parallel)
    share = replace(share, meeting=str(ranks.meeting), threads=_threads(share))
    group = Group(share.ranks)
    try:
        device_of(replace(share, rank=share.ranks - 1))
        for rank in range(1, share.ranks):
            ranks.start(replace(share, rank=rank))
        local = load_share(share, group, progress)
        ranks.receive_replies()  # they have loaded their shares
        ranks.send(pack("join"))
        group.join(ranks.meeting, 0, device_of(share))
        ranks.watch()
    except BaseException:
        ranks.release()
        raise
    return ParallelNetwork(local, ranks, load_config(Path(share.directory)))


def _threads(share: Share) -> int | None:
    """Return the number of threads of a rank: a machine's threads are divided."""
    if share.threads is not None or share.device != "cpu":
        return share.threads
    threads = max(1, torch.get_num_threads() // share.ranks)
    torch.set_num_threads(threads)
    return threads
