"""The adapters of all tenants: loads, names, and which are still needed.

    adapter_load   {tenant, digest, folder} -> {bytes, rank}, or {refused} of files that are no
                   adapter of this model. The folder must stay while the adapter has a name
    adapter_names  {tenant, names: {name: digest}} -> 0: from now on exactly these names exist
    adapters       {tenant} -> [[name or nil, digest, bytes], ...]

An adapter's *identity* is of its files: `<tenant>/sha256:<digest>`. A name that gets other files
has another identity, and so have the entries that are computed with it.

An adapter that has lost its name stays loaded while a call or a KV file of this kernel needs it,
and counts in its tenant's bytes until then. A kernel that recovers from a journal loads all
adapters again, before its first step. What cannot be loaded then answers EIO.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from symphony_kernel.executor.adapters.config import AdapterError
from symphony_kernel.executor.base import AdapterSize, Executor
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    ADAPTERS_LOADED_BYTES_MAX,
    TENANT_ADAPTERS_CEILING,
    TENANT_ADAPTERS_LOADED_BYTES_MAX,
)
from symphony_kernel.protocol.pred_options import CACHED_BYTES_MAX, PredOptions, is_adapter_name

_log = logging.getLogger(__name__)
_RESOLVED_MAX: Final = 4096  # options in memory
_WORDS_MAX: Final = 500  # characters of a refusal


@dataclass(slots=True)
class LoadedAdapter:
    """An adapter in the executor, from the files in `folder`."""

    folder: str
    bytes: int
    rank: int
    fresh: bool = True  # it has had no name yet, and stays until its tenant's names are told


@dataclass(slots=True)
class AdapterLoad:
    """A request to load an adapter that has not been answered."""

    tenant: str
    identity: str
    folder: str


class Adapters:
    """Answers the gateway's requests about adapters, and finds a tenant's adapter by its name.

    `needed` returns the identities that calls under way have. `happen` records an internal event.
    """

    # Fields that the next kernel makes anew.
    OWN: ClassVar = (
        "_executor", "_kvfs", "_needed", "_answer", "_happen", "_live", "_lock", "_tasks",
        "_resolved", "_threads", "_charge",
    )  # fmt: skip

    def __init__(
        self,
        executor: Executor,
        kvfs: KVFS,
        needed: Callable[[], Iterable[str]],
        answer: Callable[[m.Answer], None],
        happen: Callable[[str, list[Any]], None],
        charge: Callable[[str, float], None],
        *,
        threads: bool = True,
    ) -> None:
        """`charge` a tenant for seconds of a processor; with `threads` a thread loads adapters."""
        self._threads, self._charge = threads, charge
        self._executor, self._kvfs, self._needed = executor, kvfs, needed
        self._answer, self._happen = answer, happen
        self.names: dict[str, dict[str, str]] = {}  # tenant -> name -> identity
        self.loaded: dict[str, LoadedAdapter] = {}  # by identity
        self.pending: dict[int, AdapterLoad] = {}  # by the request's number
        self._live = True  # False: a replay, which loads nothing
        self._lock = asyncio.Lock()  # one adapter's tensors are in memory twice at a time
        self._tasks: set[asyncio.Task[None]] = set()
        # What options become in a call: by tenant and bytes.
        self._resolved: dict[tuple[str, bytes], PredOptions] = {}

    # -- Calls ----------------------------------------------------------------------------------
    def resolve(self, tenant: str, options: PredOptions, packed: bytes) -> PredOptions:
        """Return options with the identity of the adapter that they name; ENOENT.

        `packed` are the bytes of which they were made.
        """
        key = tenant, packed
        found = self._resolved.get(key)
        if found is None:
            identity = self.names.get(tenant, {}).get(options.adapter)
            if identity is None:
                raise SyscallError(Errno.ENOENT, f"no adapter {options.adapter}")
            found = replace(options, adapter=identity)
            if len(packed) <= CACHED_BYTES_MAX:
                if len(self._resolved) >= _RESOLVED_MAX:
                    self._resolved.clear()
                self._resolved[key] = found
        return found

    # -- Requests of the gateway ----------------------------------------------------------------
    def handle(self, ask: m.Ask) -> bool:
        """Handle a request if it is one of these; return whether it is."""
        try:
            if ask.what == "adapter_load":
                self._load(ask.seq, *_texts(ask.args, "tenant", "digest", "folder"))
            elif ask.what == "adapter_names":
                self._answer(m.Answer(ask.seq, 0, self._name(dict(ask.args))))
            elif ask.what == "adapters":
                self._answer(m.Answer(ask.seq, 0, self._list(*_texts(ask.args, "tenant"))))
            else:
                return False
        except SyscallError as error:
            self._answer(m.Answer(ask.seq, -error.errno, error.detail))
        return True

    def _load(self, seq: int, tenant: str, digest: str, folder: str) -> None:
        identity = _identity(tenant, digest)
        known = self.loaded.get(identity)
        if known is not None:
            known.folder = folder
            self._answer(m.Answer(seq, 0, {"bytes": known.bytes, "rank": known.rank}))
            return
        self._drop_unneeded()
        self._check_room(tenant, 0)
        self.pending[seq] = AdapterLoad(tenant, identity, folder)
        if self._live:
            task = asyncio.ensure_future(self._run(seq, identity, Path(folder)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, seq: int, identity: str, folder: Path) -> None:
        size, rank, words, spent = 0, 0, "", list[float]()
        try:
            async with self._lock:
                load = partial(self._load_timed, identity, folder, spent)
                size, rank = await asyncio.to_thread(load) if self._threads else load()
        except (AdapterError, CheckpointError, OSError) as error:
            words = str(error).replace(f"{folder}/", "")[:_WORDS_MAX]
        except MemoryError as error:
            _log.error("the adapter %s cannot be loaded: %s", identity, error)
            words = "there is no memory for it"
        self._charge(_owner(identity), sum(spent))
        self._happen("adapter loaded", [seq, size, rank, words])

    def _load_timed(self, identity: str, folder: Path, spent: list[float]) -> AdapterSize:
        """Load an adapter; add the seconds of a processor that it takes to `spent`."""
        began = time.thread_time()
        try:
            return self._executor.load_adapter(identity, folder)
        finally:
            spent.append(time.thread_time() - began)

    def adapter_loaded(self, seq: int, size: int, rank: int, words: str) -> None:
        """Answer a load that has ended, with `words` if it was refused."""
        load = self.pending.pop(seq, None)
        if load is None:  # the gateway has gone
            return
        if words:
            self._answer(m.Answer(seq, 0, {"refused": words}))
            return
        try:
            if load.identity not in self.loaded:
                self._check_room(load.tenant, size)
                self.loaded[load.identity] = LoadedAdapter(load.folder, size, rank)
        except SyscallError as error:
            self._unload(load.identity)
            self._answer(m.Answer(seq, -error.errno, error.detail))
        else:
            self._answer(m.Answer(seq, 0, {"bytes": size, "rank": rank}))

    def _check_room(self, tenant: str, size: int) -> None:
        """Check that an adapter of `size` bytes may be loaded; EDQUOT, ENOMEM."""
        mine = sum(
            each.bytes for identity, each in self.loaded.items() if _owner(identity) == tenant
        )
        if mine + size > TENANT_ADAPTERS_LOADED_BYTES_MAX:
            raise SyscallError(
                Errno.EDQUOT,
                f"the tenant's adapters, with deleted ones that KV files need, may take "
                f"{TENANT_ADAPTERS_LOADED_BYTES_MAX} bytes",
            )
        if sum(each.bytes for each in self.loaded.values()) + size > ADAPTERS_LOADED_BYTES_MAX:
            raise SyscallError(Errno.ENOMEM, "the server has no memory for more adapters")

    def _name(self, args: dict[str, Any]) -> int:
        tenant, names = args.get("tenant"), args.get("names")
        if set(args) != {"tenant", "names"} or not isinstance(tenant, str):
            raise SyscallError(Errno.EINVAL, "adapter_names: tenant, names")
        if not isinstance(names, dict) or len(names) > TENANT_ADAPTERS_CEILING:
            raise SyscallError(Errno.EINVAL, f"at most {TENANT_ADAPTERS_CEILING} names")
        wanted: dict[str, str] = {}
        for name, digest in names.items():
            if not (isinstance(name, str) and is_adapter_name(name) and isinstance(digest, str)):
                raise SyscallError(Errno.EINVAL, "names map names to digests")
            wanted[name] = _identity(tenant, digest)
            if wanted[name] not in self.loaded:
                raise SyscallError(Errno.ENOENT, f"{name} is not loaded")
        self._resolved.clear()
        self.names[tenant] = wanted
        if not wanted:
            del self.names[tenant]
        for identity, each in self.loaded.items():
            if _owner(identity) == tenant:
                each.fresh = False
                if identity not in wanted.values():
                    self._kvfs.prefix_cache.forget_adapter(tenant, identity)
        self._drop_unneeded()
        return 0

    def _list(self, tenant: str) -> list[list[Any]]:
        names = {identity: name for name, identity in self.names.get(tenant, {}).items()}
        return [
            [names.get(identity), identity.rpartition(":")[2], each.bytes]
            for identity, each in self.loaded.items()
            if _owner(identity) == tenant
        ]

    # -- Adapters without a name ----------------------------------------------------------------
    def instance_ended(self) -> None:
        """Unload what only the KV files of an ended instance have needed."""
        if len(self.loaded) > sum(map(len, self.names.values())):
            self._drop_unneeded()

    def _drop_unneeded(self) -> None:
        named = {identity for names in self.names.values() for identity in names.values()}
        nameless = [
            identity
            for identity, each in self.loaded.items()
            if not each.fresh and identity not in named
        ]
        if not nameless:
            return
        kept = self._kvfs.adapters_in_use() | set(self._needed())
        for identity in nameless:
            if identity not in kept:
                del self.loaded[identity]
                self._unload(identity)

    def _unload(self, identity: str) -> None:
        if self._live:
            self._executor.drop_adapter(identity)

    # -- Recovery -------------------------------------------------------------------------------
    def pause(self) -> None:
        """Load nothing until `resume`: a replay has no use for it."""
        self._live = False

    def resume(self) -> None:
        """Load all adapters again, and end the requests that the kernel before has left."""
        self._live = True
        for identity, each in self.loaded.items():
            try:
                self._executor.load_adapter(identity, Path(each.folder))
            except (AdapterError, CheckpointError, OSError, MemoryError) as error:
                _log.error("the adapter %s cannot be loaded again: %s", identity, error)
        for seq in list(self.pending):
            del self.pending[seq]
            self._answer(m.Answer(seq, -Errno.EIO, "the kernel was restarted meanwhile"))

    def detached(self) -> None:
        """Forget the names and requests of a gateway that has disconnected."""
        self.pending.clear()
        self.names.clear()
        self._resolved.clear()
        for each in self.loaded.values():
            each.fresh = False
        self._drop_unneeded()

    async def close(self) -> None:
        """Wait for the loads under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def statistics(self) -> dict[str, int]:
        """Return the number of loaded adapters, and their bytes."""
        size = sum(each.bytes for each in self.loaded.values())
        return {"adapters": len(self.loaded), "adapter_bytes": size}


def _identity(tenant: str, digest: str) -> str:
    return f"{tenant}/sha256:{digest}"


def _owner(identity: str) -> str:
    """Return the tenant of an identity."""
    return identity.rpartition("/")[0]


def _texts(args: dict[str, Any], *names: str) -> list[str]:
    """Return the arguments in order; EINVAL unless they are exactly these texts."""
    if set(args) != set(names) or any(type(args[name]) is not str for name in names):
        raise SyscallError(Errno.EINVAL, f"arguments must be texts: {', '.join(names)}")
    return [args[name] for name in names]
