"""The executor of real models: native kernels, FlashInfer, or torch alone.

One thread does all device work, one step after the other. It releases Python's lock while it
computes, so the kernel's event loop runs at the same time.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from symphony_kernel.executor.adapters.config import AdapterError
from symphony_kernel.executor.adapters.files import open_adapter
from symphony_kernel.executor.base import (
    AdapterSize,
    Batch,
    KVLayout,
    ModelInfo,
    Results,
    Row,
    prepare_pages,
)
from symphony_kernel.executor.bitmask import Bitmasks, RowMasks
from symphony_kernel.executor.chained_batch import Chain
from symphony_kernel.executor.cuda.memory import divide_memory, pages_left, workspace_size
from symphony_kernel.executor.cuda.model import CudaDecoder
from symphony_kernel.executor.cuda.network import CudaNetwork
from symphony_kernel.executor.device_queue import DeviceThread, StepFuture
from symphony_kernel.executor.models.assets import load_assets
from symphony_kernel.executor.models.config import ModelConfig, load_config
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.fitting import pool_pages
from symphony_kernel.executor.models.loader import Progress, Weights
from symphony_kernel.executor.models.quantization import Quantization
from symphony_kernel.executor.models.tensor_headers import check_tensors
from symphony_kernel.executor.native.library import Library, load_library
from symphony_kernel.executor.native.network import NativeNetwork
from symphony_kernel.executor.network import Network
from symphony_kernel.executor.parallel.rank_network import start_parallel
from symphony_kernel.executor.parallel.ranks import DeviceLost, Parallel, Share
from symphony_kernel.executor.parallel.sharding import Shard
from symphony_kernel.executor.reference.decoder import Decoder
from symphony_kernel.executor.reference.network import TorchNetwork
from symphony_kernel.executor.sampling import SamplingRequest
from symphony_kernel.platform.build_cache import LibraryUnavailable
from symphony_kernel.platform.cpu_count import usable_processors
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import DELIVERY_MS_DEFAULT, LOOKAHEAD_STEPS_MAX
from symphony_kernel.protocol.pred_options import Get

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

# As many places' logits are computed at a time as fit into this.
_LOGITS_BYTES_MAX = 64 << 20
_ALONE = Parallel()
_LOGITS_BYTES_MAX_CUDA = 512 << 20


class TorchExecutor:
    """A model and its page pool on one device (see `base.Executor`)."""

    follows = True

    def __init__(
        self,
        model: ModelInfo,
        network: Network,
        frame_count: int,
        logits_places: int,
        thread: DeviceThread,
        device_lost: DeviceLost | None = None,
        config: ModelConfig | None = None,
    ) -> None:
        """Compute with `network` on `thread`; call `device_lost` if the device breaks.

        Adapters are checked against `config`.
        """
        self._config = config
        self.model = model
        self.frame_count = frame_count
        self.network = network
        self.pages = network.pages
        self.computes = network.computes
        self._logits_places = logits_places
        self._thread = thread
        self._masks = Bitmasks(model.vocab_size)
        self._last: Results = []  # of the last step, for a step that follows it
        # Only a CudaNetwork can launch a step before the one that it follows has ended.
        self._ahead = network if isinstance(network, CudaNetwork) else None
        self.launches_ahead = self._ahead is not None
        # The batches that were given last, without any other work between them.
        self._given: deque[Batch] = deque(maxlen=LOOKAHEAD_STEPS_MAX + 2)
        self._device_lost = device_lost

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        dtype: str = "auto",
        quantize: str = "none",
        device: str = "auto",
        pool_bytes: int | None = None,
        threads: int | None = None,
        delivery_ms: float = DELIVERY_MS_DEFAULT,
        name: str | None = None,
        progress: Progress | None = None,
        parallel: Parallel = _ALONE,
    ) -> "TorchExecutor":
        """Load a checkpoint in Hugging Face layout; blocks until it is ready.

        `dtype` is auto, fp32 or bf16; `quantize` none, int8 or int4 (weights, on a CPU); `device`
        auto, cpu or cuda. `threads` are torch's, of the whole process. `delivery_ms` is how late
        the ends of chained steps may be delivered. `progress` is called with the loaded share of
        the weights. With several ranks (`parallel`) the pool and `threads` are of each rank.

        Raises CheckpointError: the directory holds no model that this executor can run, or the pool
        is too small for a single page.
        """
        model = load_assets(directory, dtype, name).model
        config = load_config(directory)
        check_tensors(directory, config)  # before any rank or memory
        place = torch.device(_device(device))
        _check_place(config, place)
        quantization = _quantization(quantize, place)
        kind = getattr(torch, model.dtype)
        layout = Shard(config, 0, parallel.ranks).config.kv_layout(model.dtype)
        pages = pool_pages(layout, pool_bytes)
        if pages < 1:
            raise CheckpointError(f"a pool of {pool_bytes} bytes is too small for one page")
        places = _logits_places(config, place)
        thread = _start_thread(threads, delivery_ms)

        def build() -> Network:
            if parallel.ranks > 1:
                share = Share(
                    str(directory), model.dtype, place.type, quantization, pages, places, threads,
                    ranks=parallel.ranks,
                )  # fmt: skip
                return start_parallel(share, parallel, progress)
            library = _load_native(place)
            loading = Weights(directory, config, kind, place, progress)
            with torch.inference_mode(), loading as weights:
                if place.type == "cuda":
                    decoder = CudaDecoder(config, weights, kind)
                    room = pages if pool_bytes is not None else _pages_left(decoder, layout, places)
                    return CudaNetwork(decoder, room, places)
                if library is None:
                    return TorchNetwork(Decoder(config, weights, kind, quantization), pages)
                return NativeNetwork(
                    library, config, weights, kind,
                    pages=pages, threads=torch.get_num_threads(), logits_places=places,
                    quantization=quantization,
                )  # fmt: skip

        try:
            network = thread.call(build)
            if isinstance(network, NativeNetwork):
                thread.ring = network.ring
            elif isinstance(network, CudaNetwork):
                pages = network.page_count
            return cls(model, network, pages, places, thread, parallel.device_lost, config)
        except BaseException:
            thread.stop()
            raise

    async def run(self, batch: Batch) -> Results:
        return await self.start(batch)

    def start(self, batch: Batch) -> StepFuture[Results]:
        """Compute one step, in one hop to the device's thread and one hop back."""
        prepared = self.network.prepare(batch.rows) if batch.rows else None
        batch.note_unadapted(self.network.adapters)
        step, chain = partial(self._step, batch, prepared), batch.chain
        before = self._note_given(batch, prepared) if self._ahead is not None else None
        follows = before is not None and prepared is not None and prepared.follow(before, chain)
        if chain is None:
            outcome = self._thread.start(step)
        else:
            begin = partial(self._begin_chained, chain, batch, prepared)
            outcome = self._thread.start(step, begin, chain.may_batch_delivery)
        if follows and self._ahead is not None and before is not None and prepared is not None:
            # Only now that the thread begins it when the step in front has ended: a launch without
            # a begin would leave open whether it may be revoked.
            self._ahead.launch_after(prepared, before)
        return outcome

    def _note_given(self, batch: Batch, prepared: Any) -> Any:
        """Return the prepared step behind which a batch may be launched ahead of its turn."""
        given, chain = self._given, batch.chain
        if prepared is None or not _may_run_ahead(batch):
            given.clear()  # what is given next must not be launched before this
        before = given[-1] if given else None
        if chain is not None and chain.before is not None:
            # In between are only steps that were revoked; other work would have cleared them.
            before = next((each for each in given if each is chain.before), None)
        if prepared is not None:
            batch.prepared = prepared
            given.append(batch)
        return None if before is None else before.prepared

    def _begin_chained(self, chain: Chain, batch: Batch, prepared: Any) -> bool:
        if prepared is None:
            return batch.begin(self._last)
        if not chain.begin(self._last):
            return False
        prepared.set_tokens(chain.tokens)
        return True

    def load_adapter(self, identity: str, folder: Path) -> AdapterSize:
        """Load an adapter from a PEFT folder; rows may use it from then on. On any thread.

        Raises AdapterError: it is not supported, or the executor has none; CheckpointError;
        MemoryError.
        """
        adapters = self.network.adapters
        if adapters is None or self._config is None:
            raise AdapterError(f"adapters are not supported with {self.computes}")
        file = open_adapter(folder, self._config)
        try:
            with torch.inference_mode():
                packed = self.network.pack_adapter(file)
        except RuntimeError as error:  # torch reports a lack of memory so
            raise MemoryError(str(error)) from error
        adapters[identity] = packed
        return AdapterSize(packed.bytes, file.rank)

    def drop_adapter(self, identity: str) -> None:
        """Unload an adapter that no row needs any more."""
        packed = (self.network.adapters or {}).pop(identity, None)
        if packed is not None:  # steps that were given may still read it
            self._thread.start(partial(id, packed))

    async def close(self) -> None:
        await self._thread.start(self.network.release)
        self._thread.stop()
        self._masks.close()

    def open_host(self, pages: int) -> None:
        self._thread.call(lambda: self.pages.open_host(pages))

    async def after_steps(self, work: Callable[[], _T]) -> _T:
        self._given.clear()  # what is given next must not be launched before this
        return await self._thread.start(work)

    def _step(self, batch: Batch, prepared: Any) -> Results:
        try:
            return self._run_step(batch, prepared)
        except Exception:
            words = None if self._ahead is None else self._ahead.broken()
            if words is not None and self._device_lost is not None:
                self._device_lost(words)  # it will not compute any more
            raise

    def _run_step(self, batch: Batch, prepared: Any) -> Results:
        self._last = []  # of a step that fails or never begins
        try:
            prepare_pages(self.pages, batch)
            if batch.chain is not None and batch.chain.tokens is None:
                if self._ahead is not None and prepared is not None:
                    self._ahead.drop_step(prepared)
                return []
            results = self._rows(batch, prepared)
            for index in batch.unadapted:
                results[index] = SyscallError(Errno.EIO, "its adapter is not loaded")
            self._last = batch.results = results
            return results
        finally:
            if batch.saves is not None or batch.loads is not None:
                batch.moved_seconds += self.pages.settle()

    def _rows(self, batch: Batch, prepared: Any) -> Results:
        constrained = [index for index, row in enumerate(batch.rows) if row.matcher is not None]
        if not constrained:
            return self._compute(batch, prepared)
        # The masks are made while the step computes.
        tokens = _late_tokens(batch)
        buffers = None if prepared is None else self.network.mask_buffers(prepared)
        self._masks.begin(batch.rows, constrained, tokens, buffers)
        results = None
        try:
            results = self._compute(batch, prepared, self._masks.wait)
        finally:
            self._masks.finish(results)
        return results

    def _compute(
        self, batch: Batch, prepared: Any, masks: Callable[[], RowMasks] | None = None
    ) -> Results:
        if prepared is not None:
            return self.network.compute(prepared, masks)
        results: list[bytes | SyscallError] = [b""] * len(batch.rows)
        if not batch.rows:
            return results
        indices = self.network.forward(batch.rows)
        made = masks() if masks is not None else {}
        portions = _split_places(batch.rows, indices, made, self._logits_places)
        for first, requests, owners in portions:
            for owner, part in zip(owners, self._answer(first, requests), strict=True):
                before = results[owner]
                if isinstance(part, bytes) and isinstance(before, bytes):
                    part = before + part
                results[owner] = part
        return results

    def _answer(self, first: int, requests: list[SamplingRequest]) -> Results:
        """Return results at places of the last `forward`; all or none are hidden states."""
        if requests[0].options.get is not Get.HIDDEN:
            return self.network.answer(first, requests)
        ends = list(accumulate(len(request.positions) for request in requests))
        states = self.network.hidden(first, ends[-1])
        return [part.tobytes() for part in np.split(states, ends[:-1])]


def _split_places(
    rows: list[Row], indices: list[int], masks: RowMasks, places_max: int
) -> Iterator[tuple[int, list[SamplingRequest], list[int]]]:
    """Yield portions of the places of some rows: (first place, requests, rows of these)."""
    requests: list[SamplingRequest] = []
    owners: list[int] = []
    first = used = 0
    hidden = False  # whether the portion is of hidden states: no portion has both
    for index in indices:
        row = rows[index]
        positions = row.positions[row.places]
        before, hidden = hidden, row.options.get is Get.HIDDEN
        while len(positions):
            if used == places_max or (used and hidden != before):
                yield first, requests, owners
                first, used, requests, owners = first + used, 0, [], []
            room = places_max - used
            part, positions = positions[:room], positions[room:]
            requests.append(SamplingRequest(row.options, row.seed, part, masks.get(index)))
            owners.append(index)
            used += len(part)
            before = hidden
    if requests:
        yield first, requests, owners


def _may_run_ahead(batch: Batch) -> bool:
    """Whether a batch has nothing but rows, as what is launched ahead must."""
    moves = batch.saves is not None or batch.loads is not None or batch.poison is not None
    return not (batch.copies or moves)


def _late_tokens(batch: Batch) -> list[int] | None:
    """Return each row's only token, if all came from the step before."""
    chain = batch.chain
    if chain is None or chain.tokens is None:
        return None
    if not chain.committed:
        return chain.tokens
    for row, token in zip(batch.rows, chain.tokens, strict=False):  # the other rows have theirs
        row.tokens = np.array([token], np.uint32)
    return None


def free_device_memory(name: str) -> int | None:
    """Return the device's free bytes; None: it uses the machine's memory."""
    return torch.cuda.mem_get_info()[0] if _device(name) == "cuda" else None


def _pages_left(decoder: CudaDecoder, layout: KVLayout, places: int) -> int:
    """Return the pages for which a GPU has room, when a model's weights are loaded."""
    torch.cuda.empty_cache()  # what loading took
    free, _ = torch.cuda.mem_get_info(decoder.device)
    config = decoder.config
    memory = divide_memory(
        config,
        decoder.dtype.itemsize,
        free,
        logits_places=places,
        workspace=workspace_size(config, decoder.dtype, decoder.device),
    )
    return pages_left(layout.page_bytes, memory)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise CheckpointError("device cuda: torch finds no CUDA device")
    if name not in ("cpu", "cuda"):
        raise CheckpointError(f"device must be auto, cpu or cuda, not {name!r}")
    return name


def _check_place(config: ModelConfig, place: torch.device) -> None:
    """Raise CheckpointError if the device's kernels lack a part of the model's mathematics."""
    lacking = config.additions() if place.type == "cuda" else []
    if lacking:
        raise CheckpointError(
            f"a GPU does not compute models with {', '.join(lacking)} yet: use --device cpu"
        )


def _quantization(name: str, place: torch.device) -> Quantization:
    try:
        found = Quantization(name)
    except ValueError:
        raise CheckpointError(f"quantize must be none, int8 or int4, not {name!r}") from None
    if found is not Quantization.NONE and place.type != "cpu":
        raise CheckpointError(f"quantize {name} needs a CPU, the device is {place.type}")
    return found


def _load_native(place: torch.device) -> Library | None:
    """Return the native kernels, or None where torch must compute."""
    if place.type != "cpu":
        return None
    try:
        return load_library()
    except LibraryUnavailable as error:
        _log.warning("no native kernels, torch computes several times slower: %s", error)
        return None


def _logits_places(config: ModelConfig, place: torch.device) -> int:
    """Return how many rows' logits a step may hold."""
    logits_bytes = _LOGITS_BYTES_MAX if place.type == "cpu" else _LOGITS_BYTES_MAX_CUDA
    return max(1, logits_bytes // (4 * config.vocab_size))


def _torch_threads(said: int | None, usual: int, usable: int) -> int | None:
    """Return the number of threads to set for torch; None: keep torch's own.

    torch looks at the affinity only. With more threads than a cgroup's quota of processors, all
    threads would be stopped for most of a step.
    """
    if said is not None:
        return said
    return usable if usable < usual else None


def _start_thread(threads: int | None, delivery_ms: float) -> DeviceThread:
    # torch keeps a number of threads for the process and for each thread that starts work.
    def start() -> None:
        wanted = _torch_threads(threads, torch.get_num_threads(), usable_processors())
        if wanted is not None:
            torch.set_num_threads(wanted)

    return DeviceThread(start, torch.inference_mode, delivery_ms / 1000)
