"""Children: spawn, join, and grants of files to a child or to the parent."""

from typing import Any

import msgpack
from symphony_kernel.protocol.errno import Errno, LimitError, SyscallError
from symphony_kernel.protocol.limits import (
    INSTANCE_HANDLES_MAX,
    NAME_BYTES_MAX,
    RUN_INPUT_BYTES_MAX,
)
from symphony_kernel.protocol.messages import Op

from symphony_runtime.worker.handles import ALL_RIGHTS, GRANT
from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.run import Run
from symphony_runtime.worker.syscalls import validation
from symphony_runtime.worker.tickets import Ticket

_SPAWN_KEYS = frozenset({"program", "entry", "input", "grants"})
_GRANT_KEYS = frozenset({"handle", "rights", "name"})
_SPAWN_BYTES_MAX = RUN_INPUT_BYTES_MAX + (1 << 20)  # the input, and bytes for the grants


def spawn(instance: Instance, pointer: int, length: int) -> int | None:
    """Return a ticket for the pid of a new child.

    Grants go to the kernel first, in order with the parent's other calls. Then the gateway resolves
    the program and registers the child. Then this worker starts it.
    """
    instance.fiber.check(pointer, length)
    if length > _SPAWN_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"{length} bytes")
    options = validation.mapping(instance.fiber.read(pointer, length), _SPAWN_KEYS)
    program, entry = _optional_name(options, "program"), _optional_name(options, "entry")
    data = _input(options)
    grants = _grants(instance, options.get("grants", []))
    _check_family(instance.run, instance.depth)
    ticket = instance.tickets.issue(held=4)
    instance.run.count_memory(len(data), measured=False)  # until it has ended
    # Uncounted when the spawn fails, or the child is joined or can no longer be joined.
    instance.run.children += 1
    birth = _Spawn(instance, ticket, program, entry, data)
    ticket.drop = birth.cancel
    birth.begin(grants)
    return instance.paced(ticket.number)


def _check_family(run: Run, depth: int) -> None:
    if depth >= run.child_depth_max:
        detail = f"child_depth: at most {run.child_depth_max}"
        raise LimitError(Errno.EDQUOT, "child_depth", detail)
    if run.children >= run.children_max:
        raise LimitError(Errno.EDQUOT, "children", f"children: at most {run.children_max}")


class _Spawn:
    """A child that is being started: grants staged, then registered, then started."""

    def __init__(
        self, parent: Instance, ticket: Ticket, program: str | None, entry: str, data: bytes
    ) -> None:
        self._parent, self._ticket = parent, ticket
        self._program, self._entry, self._data = program, entry, data
        self._stage = 0
        self._cancelled = False

    def begin(self, grants: list[list[Any]]) -> None:
        """Stage the grants, if there are any, before asking the gateway."""
        if not grants:
            self._ask()
            return
        self._stage = self._parent.services.next_stage()
        self._parent.pending_spawns.add(self._abandon)
        self._parent.ask_kernel(self._staged, Op.STAGE, self._stage, grants)

    def cancel(self) -> None:
        """End the child as soon as it is registered."""
        self._cancelled = True

    def _staged(self, reply: Any) -> None:
        self._parent.pending_spawns.remove(self._abandon)
        if self._cancelled or reply < 0:
            self._fail(reply)
        else:
            self._ask()

    def _ask(self) -> None:
        args = {
            "parent": self._parent.id,
            "program": self._program,
            "entry": self._entry,
            "input": self._data,
            "stage": self._stage,
        }
        # Not `Instance.ask_gateway`: a child that was registered must be ended even if its parent
        # has ended before the answer.
        self._parent.services.ask_gateway("spawn", args, self._answered)

    def _answered(self, errno: int, made: Any) -> None:
        parent = self._parent
        if errno < 0:
            parent.note_refusal(errno, made)
            self._fail(errno)
            return
        pid = parent.next_pid
        parent.next_pid += 1
        parent.services.start_child(parent, pid, {"entry": self._entry} | made, self._data)
        child = parent.children[pid]
        if child.ended or parent.ended:  # before it ran
            child.drop_input()
        if parent.ended:
            reap(parent, child)
        elif self._cancelled:
            parent.services.end_cancelled_child(child)
        else:
            parent.complete(self._ticket, pid.to_bytes(4, "little"))

    def _fail(self, errno: int) -> None:
        self._abandon()
        if not (self._cancelled or self._parent.ended):
            self._parent.complete(self._ticket, errno)

    def _abandon(self) -> None:
        run = self._parent.run
        run.children -= 1
        run.memory_bytes -= len(self._data)


def join(instance: Instance, pid: int) -> int:
    """Return a ticket for a child's msgpack {code, output}. Raise ENOENT."""
    child = instance.children.get(pid)
    if child is None:
        raise SyscallError(Errno.ENOENT, f"no child {pid}")
    ticket = instance.tickets.issue()
    if child.ended:
        instance.complete(ticket, reap(instance, child))
    else:
        child.joiners.append(ticket)
        ticket.drop = lambda: child.joiners.remove(ticket)
    return ticket.number


def reap(parent: Instance, child: Instance) -> bytes:
    """Forget an ended child and return the result of `join`."""
    del parent.children[child.pid]
    parent.run.children -= 1
    ended = {"code": child.end_code, "output": b"".join(child.output)}
    result: bytes = msgpack.packb(ended, use_bin_type=True)
    return result


def kv_grant(
    instance: Instance, handle: int, pid: int, rights: int, name: int, name_len: int
) -> None:
    """Grant a handle to a child or the parent (pid 0), with at most `rights`; suspends."""
    label = validation.name(instance, name, name_len)
    _check_rights(rights)
    have = instance.handles.require(handle, GRANT)
    other = instance.parent if pid == 0 else instance.children.get(pid)
    if other is None or other.ended:
        raise SyscallError(Errno.ENOENT, f"no relative {pid}")
    instance.suspend_on_kernel(int, Op.KV_GRANT, handle, other.id, rights & have, label)


def kv_granted(instance: Instance, name: int, name_len: int) -> None:
    """Return the handle that was granted under a name, or ENOENT; suspends.

    The kernel hands out a grant once. A second call returns the same handle while it is open.
    """
    label = validation.name(instance, name, name_len)
    handle = instance.handles.allocate(0)

    def on_reply(reply: int) -> None:
        if reply >= 0:
            instance.handles.rights[handle] = reply
            instance.granted[label] = handle
            instance.resume(handle)
            return
        instance.handles.close(handle)
        taken = instance.granted.get(label, 0)
        instance.resume(taken if taken in instance.handles.rights else reply)

    instance.ask_kernel(on_reply, Op.KV_GRANTED, handle, label)


def _optional_name(options: dict[str, Any], key: str) -> Any:
    value = options.get(key)
    if value is None:
        return None if key == "program" else ""
    if not isinstance(value, str) or not value:
        raise SyscallError(Errno.EINVAL, f"{key} must be a name")
    if len(value.encode()) > NAME_BYTES_MAX:
        raise SyscallError(Errno.ENAMETOOLONG, key)
    return value


def _input(options: dict[str, Any]) -> bytes:
    data = options.get("input", b"")
    if isinstance(data, str):
        data = data.encode()
    if not isinstance(data, bytes):
        raise SyscallError(Errno.EINVAL, "input must be bytes or text")
    if len(data) > RUN_INPUT_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, "input")
    return data


def _grants(instance: Instance, grants: Any) -> list[list[Any]]:
    if not isinstance(grants, list) or len(grants) > INSTANCE_HANDLES_MAX:
        raise SyscallError(Errno.EINVAL, "grants must be a list")
    checked, names = [], set()
    for grant in grants:
        if not isinstance(grant, dict) or set(grant) != _GRANT_KEYS:
            raise SyscallError(Errno.EINVAL, "a grant is {handle, rights, name}")
        handle, rights, label = grant["handle"], grant["rights"], grant["name"]
        _check_rights(rights)
        _optional_name({"name": label}, "name")
        if type(handle) is not int or not label or label in names:
            raise SyscallError(Errno.EINVAL, "a grant without a handle or a name of its own")
        names.add(label)
        checked.append([handle, rights & instance.handles.require(handle, GRANT), label])
    return checked


def _check_rights(rights: Any) -> None:
    if type(rights) is not int or not 0 <= rights <= ALL_RIGHTS:
        raise SyscallError(Errno.EINVAL, f"rights {rights}")
