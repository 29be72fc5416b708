"""What a client is told was done, and how to see whether it was: for storage that fails.

    prepare    what has to be there before
    act        the operation; when it returns, it was acknowledged
    state      "done", "not done", "died" of a run whose gateway did, or in words what is none

`number` tells apart what different faults met. A `state` is asked for after a restart, too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from symphony import AsyncClient, ServerError
from symphony.client.views import RunResult

from tests.e2e.programs import HANG_WASM, HELLO_WASM, PARROT_WASM, wasm
from tests.support.server import deaths
from tests.support.worker.crash_guests import SAVER
from tests.support.worker.guests import call, drop, main

DONE, NOT_DONE, DIED = "done", "not done", "died"
END_SECONDS = 5.0  # for a run to end, once storage is well again
# Names a file, which lives no longer than the kernel, as its input says, and sends that back: who
# looks for the name knows that it ran, even where no run is kept.
MARKER_WASM = wasm(
    main(
        f"""(local.set $n {call("input_read", 100, 60)})
        {drop("kv_save", "(call $kv_create)", 100, "(local.get $n)", 1)}
        {drop("send", 100, "(local.get $n)")} (i32.const 0)""",
        locals_="(local $n i32)",
    )
)


@dataclass
class Clients:
    """A server's clients, and what operations remember of what they made."""

    client: AsyncClient
    admin: AsyncClient
    notes: dict[str, Any] = field(default_factory=dict)
    seen: dict[Any, Any] = field(default_factory=dict)  # results of runs, since the last start

    async def begin(self) -> None:
        for name, program in (
            ("marker", MARKER_WASM), ("hang", HANG_WASM), ("parrot", PARROT_WASM),
            ("saver", SAVER),
        ):  # fmt: skip
            await self.client.programs.upload(program, name)
        assert (await self.client.run("saver", "model"))["exit_code"] == 0
        pieces = [piece async for piece in self.client.kv.download("model")]
        self.notes["kv"] = b"".join(pieces)


class Operation:
    """One kind of request.

    `again`: it may be repeated when it is done, and changes nothing then. `exact`: one that was
    answered with an error must not be done: a client that retries would have it twice.
    `refusals` are statuses that are right for it in addition to those of the fault.
    """

    again: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    refusals: ClassVar[tuple[int, ...]] = ()

    def __init__(self, clients: Clients, number: int) -> None:
        self.clients, self.number = clients, number
        self.name = f"{type(self).__name__.lower()}-{number}"

    @property
    def client(self) -> AsyncClient:
        return self.clients.client

    @property
    def admin(self) -> AsyncClient:
        return self.clients.admin

    async def prepare(self) -> None:
        """Make what has to be there before."""

    async def act(self) -> None:
        """Do it; ServerError, ConnectionFailed: it was not acknowledged."""
        raise AssertionError("each operation has its own")

    async def settle(self) -> None:
        """Storage is well again: let come to its end what was begun."""

    async def state(self) -> str:
        """Return "done", "not done", or in words what is wrong."""
        raise AssertionError("each operation has its own")


def undone(state: str) -> str:
    """Return the state of a deletion by that of what it deletes."""
    return {DONE: NOT_DONE, NOT_DONE: DONE}.get(state, state)


async def found(asking: Awaitable[Any]) -> Any:
    """Return what a server says, or None for 404."""
    try:
        return await asking
    except ServerError as error:
        if error.status != 404:
            raise
        return None


async def ended(client: AsyncClient, run: str) -> RunResult:
    """Return a run's result after its end, or what there is of it when that does not come."""
    deadline = asyncio.get_running_loop().time() + END_SECONDS
    while True:
        result = await client.runs.get(run)
        if result["ended_ms"] is not None or asyncio.get_running_loop().time() > deadline:
            return result
        await asyncio.sleep(0.02)


def died(result: RunResult) -> bool:
    """Whether a run was live when its gateway was killed: it has failed, and nothing else."""
    return (result["status"], result["reason"]) == ("failed", deaths.DIED)


class Upload(Operation):
    """A program is there, and runs."""

    again = True

    async def act(self) -> None:
        await self.client.programs.upload(HELLO_WASM + _custom_section(self.name), self.name)

    async def state(self) -> str:
        listed = [p async for p in self.client.programs.list() if p["name"] == self.name]
        if not listed:
            return NOT_DONE
        if len(listed) > 1:
            return f"{len(listed)} programs of one name"
        result = await self.client.run(self.name)
        return DONE if result["status"] == "exited" else f"the program does not run: {result}"


class DeleteProgram(Upload):
    """A program is gone."""

    again = False
    prepare = Upload.act

    async def act(self) -> None:
        await self.client.programs.delete(self.name)

    async def state(self) -> str:
        if await found(self.client.programs.get(self.name)) is None:
            return DONE
        result = await self.client.run(self.name)
        return NOT_DONE if result["status"] == "exited" else f"half a program: {result}"


class Rollback(Operation):
    """A name points at the version before, and both versions are there."""

    again = True

    async def prepare(self) -> None:
        await self.upload("old")
        await self.upload("new")

    async def upload(self, which: str) -> None:
        wasm = HELLO_WASM + _custom_section(f"{self.name} {which}")
        uploaded = await self.client.programs.upload(wasm, self.name)
        self.clients.notes[f"{self.name} {which}"] = uploaded["id"]

    async def act(self) -> None:
        old = self.clients.notes[f"{self.name} old"]
        await self.client.programs.point(self.name, f"{self.name}@{old}")

    async def state(self) -> str:
        old, new = (self.clients.notes[f"{self.name} {which}"] for which in ("old", "new"))
        versions = {
            each["id"]: each["current"] for each in await self.client.programs.versions(self.name)
        }
        if versions.keys() != {old, new} or versions[old] is versions[new]:
            return f"the versions are {versions}"
        result = await self.client.run(self.name)
        if (result["status"], result["program"]) != ("exited", old if versions[old] else new):
            return f"the name does not run what it points at: {result}"
        return DONE if versions[old] else NOT_DONE


class Start(Operation):
    """A run that was asked for has run, once; its output is its input."""

    exact = True

    async def act(self) -> None:
        self.clients.notes[self.name] = await self.client.start("marker", self.name)

    async def settle(self) -> None:
        await asyncio.sleep(0.05)
        for run in await self.client.runs.live():
            await ended(self.client, run["id"])

    async def state(self) -> str:
        runs = await outputs(self.clients)
        if any(messages == [] and status == "running" for status, messages in runs.values()):
            return "a run stays `running`"
        mine = {r: status for r, (status, messages) in runs.items() if messages == [self.name]}
        if len(mine) > 1:
            return f"it ran {len(mine)} times"
        run = self.clients.notes.get(self.name)
        status, _ = runs.get(run or "", ("", []))
        if run is not None and list(mine) != [run] and (mine or status != DIED):
            return f"the run that was acknowledged is {runs.get(run, 'not there')}"
        if DIED in (status, *mine.values()):
            return DIED
        if any(status != "exited" for status in mine.values()):
            return f"it ended as {mine}"
        if not mine and await found(self.client.kv.stat(self.name)) is not None:
            return "it ran, and there is no run"
        return DONE if mine else NOT_DONE


class StartOnce(Start):
    """The same with an `Idempotency-Key`: it may be asked again, and runs once."""

    again, exact = True, False

    async def act(self) -> None:
        self.clients.notes[self.name] = await self.client.start(
            "marker", self.name, idempotency_key=self.name
        )


async def outputs(clients: Clients) -> dict[str, tuple[str, list[Any]]]:
    """Return all runs of the program that sends its input back: their status and messages."""
    runs: dict[str, tuple[str, list[Any]]] = {}
    async for run in clients.client.runs.list():
        if run["program_name"] == "marker":
            key = run["id"], run["ended_ms"]
            if key not in clients.seen:
                result = await clients.client.runs.get(run["id"])
                status = DIED if died(result) else result["status"]
                clients.seen[key] = status, result["messages"]
            runs[run["id"]] = clients.seen[key]
            if run["ended_ms"] is None:
                del clients.seen[key]
    return runs


class End(Operation):
    """A run that was acknowledged before the fault ends with its output."""

    async def prepare(self) -> None:
        self.run, self.told = await self.client.start("parrot"), ""

    async def act(self) -> None:
        await self.client.runs.send(self.run, self.name.encode(), close=True)
        await asyncio.sleep(0.1)  # it ends
        self.told = (await self.client.runs.get(self.run))["status"]

    async def settle(self) -> None:
        await ended(self.client, self.run)

    async def state(self) -> str:
        result = await found(self.client.runs.get(self.run))
        if result is None:
            return "the run is not there"
        if died(result) and self.told != "exited":
            return DIED
        if (result["status"], result["messages"]) == ("exited", [self.name]):
            return DONE
        return f"it is {result['status']} with {result['messages']}: {result['reason']}"


class Message(End):
    """A message is received once; the run's end meets no fault."""

    async def act(self) -> None:
        await self.client.runs.send(self.run, self.name.encode())

    async def settle(self) -> None:
        await self.client.runs.send(self.run, b"", close=True)
        await ended(self.client, self.run)

    async def state(self) -> str:
        result = await self.client.runs.get(self.run)
        if (result["status"], result["messages"]) == ("exited", []):
            return NOT_DONE
        return await super().state()


class Cancel(Operation):
    """A run is cancelled, and stays so."""

    async def prepare(self) -> None:
        self.run = await self.client.start("hang")

    async def act(self) -> None:
        await self.client.runs.cancel(self.run)

    async def settle(self) -> None:
        await asyncio.sleep(0.1)
        if (await self.client.runs.get(self.run))["status"] == "running":
            await self.client.runs.cancel(self.run)
        await ended(self.client, self.run)

    async def state(self) -> str:
        result = await found(self.client.runs.get(self.run))
        if result is None:
            return "the run is not there"
        if died(result):
            return DIED
        return DONE if result["status"] == "killed" else f"{result['status']}: {result['reason']}"


class DeleteRun(Operation):
    """A run is gone."""

    async def prepare(self) -> None:
        self.run = await self.client.start("parrot")
        await self.client.runs.send(self.run, self.name.encode(), close=True)
        await ended(self.client, self.run)

    async def act(self) -> None:
        await self.client.runs.delete(self.run)

    async def state(self) -> str:
        result = await found(self.client.runs.get(self.run))
        if result is None:
            return DONE
        return NOT_DONE if self.is_whole(result) else f"half a run: {result}"

    def is_whole(self, result: RunResult) -> bool:
        return (result["status"], result["messages"]) == ("exited", [self.name])


class DeleteEnding(DeleteRun):
    """A run is gone that has only just ended: refused while its end is not stored."""

    refusals = (409,)

    async def prepare(self) -> None:
        self.run = await self.client.start("parrot")
        self.sent = False

    async def act(self) -> None:
        if not self.sent:
            self.sent = True
            await self.client.runs.send(self.run, self.name.encode(), close=True)
            await asyncio.sleep(0.1)  # it ends
        await self.client.runs.delete(self.run)

    async def settle(self) -> None:
        if await found(self.client.runs.get(self.run)) is not None:
            await ended(self.client, self.run)

    def is_whole(self, result: RunResult) -> bool:
        """Whether a run is as it was, or died when it was to end."""
        return died(result) or super().is_whole(result)


class CreateTenant(Operation):
    """A tenant is there."""

    async def act(self) -> None:
        await self.admin.admin.create_tenant(self.name, weight=7)

    async def state(self) -> str:
        tenant = await found(self.admin.admin.tenant(self.name))
        if tenant is None:
            return NOT_DONE
        return DONE if tenant["weight"] == 7 else f"half a tenant: {tenant}"


class SuspendTenant(CreateTenant):
    """A tenant is suspended."""

    again = True
    prepare = CreateTenant.act

    async def act(self) -> None:
        await self.admin.admin.change_tenant(self.name, suspended=True)

    async def state(self) -> str:
        return DONE if (await self.admin.admin.tenant(self.name))["suspended"] else NOT_DONE


class DeleteTenant(CreateTenant):
    """A tenant is gone."""

    refusals = (503,)  # what the crash log holds of others' runs cannot be stored now
    prepare = CreateTenant.act

    async def act(self) -> None:
        await self.admin.admin.delete_tenant(self.name, everything=True)

    async def state(self) -> str:
        return undone(await super().state())


class CreateKey(Operation):
    """A key is known, and lets its owner in."""

    async def act(self) -> None:
        made = await self.admin.admin.create_key("default", name=self.name)
        self.clients.notes[self.name] = made["key"]

    async def state(self) -> str:
        keys = [k for k in await self.admin.admin.keys("default") if k["name"] == self.name]
        if len(keys) > 1:
            return f"{len(keys)} keys"
        key = self.clients.notes.get(self.name)
        if key is not None and keys:
            async with AsyncClient(self.client.url, key, retries=0) as holder:
                await holder.runs.live()
        return DONE if keys else NOT_DONE


class RevokeKey(CreateKey):
    """A key is not known any more and is refused."""

    async def prepare(self) -> None:
        await super().act()
        (self.id,) = (
            k["id"] for k in await self.admin.admin.keys("default") if k["name"] == self.name
        )

    async def act(self) -> None:
        await self.admin.admin.revoke_key("default", self.id)

    async def state(self) -> str:
        try:
            listed = await super().state()
        except ServerError as error:
            return f"it is listed, and refused with {error.status}"
        if listed == DONE:
            return NOT_DONE
        if await self.lets_in(self.clients.notes[self.name]):
            return "it is not listed, and lets its owner in"
        return DONE

    async def lets_in(self, key: str) -> bool:
        async with AsyncClient(self.client.url, key, retries=0) as holder:
            try:
                await holder.runs.live()
            except ServerError as error:
                if error.status != 401:
                    raise
                return False
        return True


class RotateKey(RevokeKey):
    """A key has another in its place. One that was refused would have left its owner without."""

    exact = True

    async def prepare(self) -> None:
        await super().prepare()
        self.old = self.clients.notes.pop(self.name)

    async def act(self) -> None:
        made = await self.admin.admin.rotate_key("default", self.id)
        self.clients.notes[self.name] = made["key"]

    async def state(self) -> str:
        ids = [k["id"] for k in await self.admin.admin.keys("default") if k["name"] == self.name]
        if len(ids) != 1:
            return f"{len(ids)} keys"
        state = NOT_DONE if ids == [self.id] else DONE
        for key, good in ((self.old, NOT_DONE), (self.clients.notes.get(self.name), DONE)):
            if key is not None and await self.lets_in(key) != (state == good):
                return f"{state}, and a key is not what it should be"
        return state


class PutSecret(Operation):
    """A secret is there."""

    again = True

    @property
    def secret(self) -> str:
        """Its name, which has no hyphens."""
        return self.name.replace("-", "_")

    async def act(self) -> None:
        await self.client.secrets.set(self.secret, "s" * 12, ["example.com"])

    async def state(self) -> str:
        names = [secret["name"] async for secret in self.client.secrets.list()]
        count = names.count(self.secret)
        return (NOT_DONE, DONE)[count]


class DeleteSecret(PutSecret):
    """A secret is gone."""

    again = False
    prepare = PutSecret.act

    async def act(self) -> None:
        await self.client.secrets.delete(self.secret)

    async def state(self) -> str:
        return undone(await super().state())


class PutKv(Operation):
    """A KV file has its durable name, and all its bytes."""

    again = True

    async def act(self) -> None:
        await self.client.kv.upload(self.name, self.clients.notes["kv"])

    async def state(self) -> str:
        stat = await found(self.client.kv.stat(self.name))
        if stat is None:
            return NOT_DONE
        pieces = [piece async for piece in self.client.kv.download(self.name)]
        whole = stat["durable"] and len(b"".join(pieces)) and stat["len"] == 3
        return DONE if whole else f"half a file: {stat}"


class SaveKv(PutKv):
    """A program saves a file; that it exits with 0 acknowledges it."""

    refusals = (507,)  # ours, for the program's error

    async def act(self) -> None:
        result = await self.client.run("saver", self.name)
        if result["exit_code"] != 0:
            raise ServerError(507, {"title": str(result)}, None)


class RemoveKv(PutKv):
    """A KV file's name is gone."""

    again = False
    prepare = PutKv.act

    async def act(self) -> None:
        await self.client.kv.remove(self.name)

    async def state(self) -> str:
        return undone(await super().state())


OPERATIONS: tuple[Callable[[Clients, int], Operation], ...] = (
    Upload, DeleteProgram, Rollback, Start, StartOnce, End, Message, Cancel, DeleteRun,
    DeleteEnding, CreateTenant, SuspendTenant, DeleteTenant, CreateKey, RevokeKey, RotateKey,
    PutSecret, DeleteSecret, PutKv, SaveKv, RemoveKv,
)  # fmt: skip


def _custom_section(name: str) -> bytes:
    """Return a section that makes a module's bytes others than those of all the rest."""
    content = bytes([len(name)]) + name.encode()
    return bytes([0, len(content)]) + content
