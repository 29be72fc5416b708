"""The process table: instances that may call, and what each of them holds.

An instance is one program in a worker. A run is a root instance with its children: they share
limits and a place in the scheduler. Ending an instance, in any state, gives back all
that it held. Parents may end before their children, and children before their parents.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from symphony_kernel.grammar.matcher import Constraint
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.file_queue import FileOperation, drop, finish
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.kvfs.quotas import TenantUsage
from symphony_kernel.kvfs.tenants import Tenant
from symphony_kernel.processes.handles import HandleTable
from symphony_kernel.protocol.errno import Errno, KernelBug, LimitError, SyscallError
from symphony_kernel.protocol.limit_table import BY_NAME, HIT
from symphony_kernel.protocol.limits import INSTANCE_HANDLES_MAX, RUN_CHILDREN_MAX
from symphony_kernel.request import Request

INSTANCE_MAX: Final = (1 << 63) - 1
_UNCLAIMED_MAX: Final = 1 << 16
_LIMITS = ("kv_tokens", "tokens", "children", "child_depth")  # of a run, that are counted here


class RequestQueue(Protocol):
    """The part of `Scheduler` that syscalls use."""

    def submit(self, request: Request) -> None: ...
    def cancel(self, request: Request) -> None: ...
    def drop_requests(self, root: int, instance: int | None = None) -> None: ...
    def charge_run(self, root: int, tenant: str, weight: float, cost: float) -> None: ...
    def trace_run(self, root: int) -> None: ...
    def trace_fork(self, root: int, file: int, source: int, length: int) -> None: ...
    def trace_held(self, request: Request, since: float) -> None: ...


class Grant(NamedTuple):
    """A capability on its way to another instance, with a reference to its file."""

    file: KVFile
    rights: int


@dataclass(slots=True)
class Usage:
    """What an instance has used, as the answer to `End`; or a tenant's total."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, other: "Usage") -> None:
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens

    def by_name(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
        }


@dataclass(slots=True, eq=False)
class Run:
    """A root instance with its children: one set of limits, one queue when scheduled."""

    root: int
    account: TenantUsage
    weight: float
    tokens_max: int
    children_max: int
    depth_max: int  # of children
    tokens: int = 0  # computed, or about to be
    call_bytes: int = 0  # of calls that wait
    exceeded: bool = False  # the gateway was notified
    traced: bool = False
    instances: int = 0


@dataclass(slots=True, eq=False)
class Instance:
    """One program that may call."""

    id: int
    tenant: Tenant
    worker: str
    run: Run
    account: TenantUsage
    parent: int  # 0: none
    depth: int
    handles: HandleTable = field(default_factory=HandleTable)
    granted: dict[str, Grant] = field(default_factory=dict)  # not opened yet, by name
    stages: dict[int, dict[str, Grant]] = field(default_factory=dict)  # for future children
    staged: int = 0  # grants in `stages`
    operations: dict[FileOperation, None] = field(default_factory=dict)  # not finished, in order
    pending: dict[int, FileOperation] = field(default_factory=dict)  # that owe a reply, by seq
    usage: Usage = field(default_factory=Usage)
    constraints: dict[int, Constraint] = field(default_factory=dict)  # by handle
    constraints_made: int = 0
    ended: bool = False

    def open_file(self, number: int, rights: int, make: Callable[[], KVFile]) -> KVFile:
        """Insert a handle, charged to the tenant, on the file that `make` returns.

        Raises SyscallError: EDQUOT, or what `make` raises; nothing has changed.
        """
        self.tenant.charge_handle()
        try:
            file = make()
        except SyscallError:
            self.tenant.handles -= 1
            raise
        self.handles.insert(number, file, rights)
        return file

    def constraint(self, handle: int) -> Constraint:
        """Return the constraint behind a handle; SyscallError EBADF."""
        found = self.constraints.get(handle)
        if found is None:
            raise SyscallError(Errno.EBADF, f"no constraint {handle}")
        return found


class ProcessTable:
    """All instances.

    `exceeded` is called with (root, reason) when a run has used up a limit.
    """

    def __init__(
        self, kvfs: KVFS, scheduler: RequestQueue, exceeded: Callable[[int, str], None]
    ) -> None:
        self._kvfs = kvfs
        self._scheduler = scheduler
        self._exceeded = exceeded
        self._instances: dict[int, Instance] = {}
        self._runs: dict[int, Run] = {}
        self._living: dict[str, int] = {}  # live instances by tenant
        self._used: dict[str, Usage] = {}  # of ended instances, by tenant
        self._unclaimed: dict[int, dict[str, int]] = {}  # usage that no `End` has asked for yet

    def use_scheduler(self, scheduler: RequestQueue) -> None:
        self._scheduler = scheduler

    def traced(self) -> list[int]:
        return [run.root for run in self._runs.values() if run.traced]

    def operations(self) -> Iterator[FileOperation]:
        for instance in self._instances.values():
            yield from instance.operations

    def constraints(self) -> Iterator[Constraint]:
        for instance in self._instances.values():
            yield from instance.constraints.values()

    # -- Instances ------------------------------------------------------------------------------
    def get(self, instance: int) -> Instance | None:
        return self._instances.get(instance)

    @property
    def live(self) -> dict[int, Instance]:
        """All live instances by id; valid until the next registration or end."""
        return self._instances

    @property
    def runs_live(self) -> int:
        return len(self._runs)

    @property
    def tenants_live(self) -> int:
        return len(self._living)

    def related(self, caller: Instance, instance: object) -> Instance:
        """Return the parent or a child of `caller`; SyscallError ENOENT for all others."""
        other = self._instances.get(instance) if type(instance) is int else None
        if other is None or (other.parent != caller.id and other.id != caller.parent):
            raise SyscallError(Errno.ENOENT, "neither the parent nor a child")
        return other

    def register(
        self,
        instance: int,
        tenant: str,
        worker: str,
        parent: int = 0,
        stage: int = 0,
        options: dict[str, Any] | None = None,
    ) -> Instance:
        """Let an instance call over a worker's link; a child takes its stage's grants.

        Raises SyscallError: EEXIST (it exists), EINVAL (options, ids, another tenant's parent),
        ENOENT (no such parent or stage), EDQUOT (too deep, too many children).
        """
        above = self._parent(parent, tenant, worker)
        grants = self._unstage(above, stage)
        try:
            if not 0 < instance <= INSTANCE_MAX or not tenant or not worker:
                raise SyscallError(Errno.EINVAL, "ids are positive, names are not empty")
            if instance in self._instances or (above is None and instance in self._runs):
                raise SyscallError(Errno.EEXIST, f"instance {instance} exists already")
            new = self._new(instance, self._kvfs.tenant(tenant), worker, above, options or {})
        except SyscallError:
            self.revoke(self._kvfs.tenant(tenant), grants.values())
            raise
        new.granted.update(grants)
        return new

    def _parent(self, parent: int, tenant: str, worker: str) -> Instance | None:
        if not parent:
            return None
        above = self._instances.get(parent)
        if above is None:
            raise SyscallError(Errno.ENOENT, f"no instance {parent}")
        if above.tenant.name != tenant or above.worker != worker:
            raise SyscallError(Errno.EINVAL, "a child has its parent's tenant and worker")
        return above

    def _new(
        self,
        instance: int,
        tenant: Tenant,
        worker: str,
        above: Instance | None,
        options: dict[str, Any],
    ) -> Instance:
        weight, kv_tokens, tokens, children, depth = _read_options(options)
        if above is None:
            account = self._account(f"run {instance}", tenant.account, kv_tokens)
            run = self._runs[instance] = Run(instance, account, weight, tokens, children, depth)
            if options.get("trace"):
                run.traced = True
                self._scheduler.trace_run(instance)
        else:
            run = above.run
            if above.depth >= run.depth_max:
                detail = f"child_depth: at most {run.depth_max}"
                raise LimitError(Errno.EDQUOT, "child_depth", detail)
            if run.instances > run.children_max:
                detail = f"children: at most {run.children_max}"
                raise LimitError(Errno.EDQUOT, "children", detail)
        new = Instance(
            id=instance,
            tenant=tenant,
            worker=worker,
            run=run,
            account=self._account(f"instance {instance}", run.account, kv_tokens),
            parent=above.id if above else 0,
            depth=above.depth + 1 if above else 0,
        )
        run.instances += 1
        self._instances[instance] = new
        self._living[tenant.name] = self._living.get(tenant.name, 0) + 1
        return new

    def _account(self, name: str, above: TenantUsage, kv_tokens: int) -> TenantUsage:
        return self._kvfs.quotas.open(name, above, page_count(kv_tokens), kv_tokens)

    # -- Grants ---------------------------------------------------------------------------------
    def hold(self, file: KVFile, rights: int) -> Grant:
        """Return a grant with its own reference, charged to the tenant; EDQUOT."""
        self._kvfs.tenant(file.tenant).charge_handle()
        file.references += 1
        return Grant(file, rights)

    def grant(self, receiver: Instance, name: str, file: KVFile, rights: int) -> None:
        """Give `receiver` a capability to open by name; SyscallError EEXIST, EDQUOT."""
        if name in receiver.granted:
            raise SyscallError(Errno.EEXIST, name)
        if len(receiver.granted) >= INSTANCE_HANDLES_MAX:
            raise SyscallError(Errno.EDQUOT, "too many grants that were not opened")
        receiver.granted[name] = self.hold(file, rights)

    def stage(self, caller: Instance, stage: int, wanted: dict[str, Grant]) -> None:
        """Keep capabilities (without references) for the child that names `stage`.

        Stages that no child has taken are revoked, oldest first, when there are too many.

        Raises SyscallError: EEXIST, EDQUOT.
        """
        if stage in caller.stages:
            raise SyscallError(Errno.EEXIST, f"stage {stage}")
        while caller.stages and (
            len(caller.stages) >= RUN_CHILDREN_MAX
            or caller.staged + len(wanted) > INSTANCE_HANDLES_MAX
        ):
            self.revoke(caller.tenant, self._unstage(caller, next(iter(caller.stages))).values())
        held: dict[str, Grant] = {}
        try:
            for name, grant in wanted.items():
                held[name] = self.hold(grant.file, grant.rights)
        except SyscallError:
            self.revoke(caller.tenant, held.values())
            raise
        caller.stages[stage] = held
        caller.staged += len(held)

    def _unstage(self, caller: Instance | None, stage: int) -> dict[str, Grant]:
        if not stage:
            return {}
        grants = caller.stages.pop(stage, None) if caller else None
        if grants is None or caller is None:
            raise SyscallError(Errno.ENOENT, f"no stage {stage}")
        caller.staged -= len(grants)
        return grants

    def revoke(self, tenant: Tenant, grants: Iterable[Grant]) -> None:
        for grant in grants:
            tenant.handles -= 1
            self._kvfs.release(grant.file)

    # -- Limits ---------------------------------------------------------------------------------
    def charge_tokens(self, caller: Instance, n: int) -> None:
        """Count n tokens that are about to be computed.

        Raises SyscallError: EDQUOT, and `exceeded` is called the first time.
        """
        run = caller.run
        if run.tokens + n > run.tokens_max:
            if not run.exceeded:
                run.exceeded = True
                self._exceeded(run.root, f"the run has used up its {run.tokens_max} tokens")
            raise SyscallError(Errno.EDQUOT, f"{run.tokens_max} tokens")
        run.tokens += n

    # -- Ends -----------------------------------------------------------------------------------
    def end(self, instance: int) -> dict[str, int]:
        """End an instance, release all that it held, and return its usage.

        Its preds in flight are dropped, its queued calls never start, and it gets no more replies.
        For an instance that ended with its worker this returns its usage, once.

        Raises SyscallError: ENOENT.
        """
        gone = self._instances.pop(instance, None)
        if gone is None:
            unclaimed = self._unclaimed.pop(instance, None)
            if unclaimed is None:
                raise SyscallError(Errno.ENOENT, f"no instance {instance}")
            return unclaimed
        gone.ended = True
        self._living[gone.tenant.name] -= 1
        if not self._living[gone.tenant.name]:
            del self._living[gone.tenant.name]
        self._drop_operations(gone)
        handles = gone.handles.clear()
        gone.tenant.handles -= len(handles)
        gone.constraints.clear()
        self._kvfs.release(*(handle.file for handle in handles))
        for grants in (gone.granted, *gone.stages.values()):
            self.revoke(gone.tenant, grants.values())
        entry_ms = self._kvfs.quotas.close(gone.account)
        self._leave_run(gone.run)
        self._used.setdefault(gone.tenant.name, Usage()).add(gone.usage)
        return {**gone.usage.by_name(), "kv_token_ms": round(entry_ms)}

    def end_worker(self, worker: str | None = None) -> list[int]:
        """End all instances of a worker that has died, or all instances; return them.

        The gateway will ask for the usage of a dead worker's instances. When all end, the gateway
        has gone, and nothing will ask.
        """
        gone = [i.id for i in self._instances.values() if worker is None or i.worker == worker]
        ended = {instance: self.end(instance) for instance in gone}
        if worker is None:
            self._unclaimed.clear()
        else:
            self._unclaimed |= ended
            while len(self._unclaimed) > _UNCLAIMED_MAX:  # of runs that were only half started
                del self._unclaimed[next(iter(self._unclaimed))]
        return gone

    def _drop_operations(self, gone: Instance) -> None:
        self._scheduler.drop_requests(gone.run.root, gone.id)
        operations = list(gone.operations)
        # First those that wait, so that none of them starts when the one before it finishes.
        for operation in operations:
            if not operation.started:
                drop(operation)
        for operation in operations:
            if operation.started and operation in gone.operations:
                finish(operation)
        assert not gone.operations

    def _leave_run(self, run: Run) -> None:
        run.instances -= 1
        if not run.instances:
            self._scheduler.drop_requests(run.root)
            self._kvfs.quotas.close(run.account)
            del self._runs[run.root]

    # -- Metrics --------------------------------------------------------------------------------
    def tenants(self) -> dict[str, dict[str, int]]:
        """Return what each tenant holds now and has used since the start.

        Looks at every live instance: for a scrape, not for a hot path.
        """
        used: dict[str, Usage] = {}
        lips: dict[str, set[int]] = {}
        for name, usage in self._used.items():
            used.setdefault(name, Usage()).add(usage)
        for instance in self._instances.values():
            used.setdefault(instance.tenant.name, Usage()).add(instance.usage)
            lips.setdefault(instance.tenant.name, set()).add(instance.run.root)
        return {
            name: {
                **used.get(name, Usage()).by_name(),
                "lips": len(lips.get(name, ())),
                "pages": tenant.account.pages,
                "handles": tenant.handles,
                "files": tenant.files,
                "durable_bytes": tenant.durable_bytes,
                **{HIT + limit: count for limit, count in tenant.account.hits.items()},
            }
            for name, tenant in self._kvfs.tenants.items()
        }

    def tenant_runs(self, tenant: str) -> dict[int, dict[str, int]]:
        """Return what each live run of a tenant holds and has computed, by its root."""
        found: dict[int, dict[str, int]] = {}
        for instance in self._instances.values():
            run = instance.run
            if instance.tenant.name == tenant and run.root not in found:
                found[run.root] = {
                    "tokens": run.tokens,
                    "kv_pages": run.account.pages,
                    "instances": run.instances,
                }
        return found

    # -- Audit ----------------------------------------------------------------------------------
    def check_integrity(self) -> None:
        """Compare what instances hold with what KVFS counts.

        Raises KernelBug: they differ; the message says where.
        """
        held: Counter[KVFile] = Counter()
        handles: Counter[str] = Counter()
        for instance in self._instances.values():
            grants = [*instance.granted.values()]
            for stage in instance.stages.values():
                grants += stage.values()
            if sum(len(stage) for stage in instance.stages.values()) != instance.staged:
                raise KernelBug(f"instance {instance.id} miscounts its staged grants")
            files = [*(handle.file for handle in instance.handles), *(g.file for g in grants)]
            held.update(files)
            handles[instance.tenant.name] += len(files)
            for operation in instance.operations:
                held.update(operation.files)
        for tenant in self._kvfs.tenants.values():
            if tenant.handles != handles[tenant.name]:
                raise KernelBug(
                    f"{tenant.name} is charged {tenant.handles} handles and has "
                    f"{handles[tenant.name]}"
                )
        self._kvfs.check_integrity(held)

    def statistics(self) -> dict[str, int]:
        handles = sum(tenant.handles for tenant in self._kvfs.tenants.values())
        return {"instances": len(self._instances), "lips": len(self._runs), "handles": handles}


def _read_options(options: dict[str, Any]) -> tuple[float, int, int, int, int]:
    """Return weight, kv_tokens, tokens, children and child_depth; SyscallError EINVAL."""
    unknown = set(options) - {"weight", "trace", *_LIMITS}
    if unknown:
        raise SyscallError(Errno.EINVAL, f"unknown options {sorted(map(str, unknown))}")
    if type(options.get("trace", False)) is not bool:
        raise SyscallError(Errno.EINVAL, "trace is true or false")
    weight = options.get("weight", 1.0)
    if type(weight) not in (int, float) or not 0 < weight < 1e6:
        raise SyscallError(Errno.EINVAL, "weight must be a positive number")
    kv_tokens, tokens, children, depth = (_limit(options, name) for name in _LIMITS)
    return float(weight), kv_tokens, tokens, children, depth


def _limit(options: dict[str, Any], name: str) -> int:
    limit = BY_NAME[name]
    value = options.get(name, limit.default)
    if type(value) is not int or value < 0:
        raise SyscallError(Errno.EINVAL, f"{name} must be an integer, at least 0")
    assert limit.ceiling is not None
    return min(value, limit.ceiling)
