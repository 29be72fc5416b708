"""Programs of a tenant: uploads, names and their versions."""

from collections.abc import AsyncIterator

from symphony.client.transport import Transport, quoted, sending
from symphony.client.views import Program, ProgramVersion

Versions = list[ProgramVersion]  # the class below has a method of the name `list`


class AsyncPrograms:
    """Programs by id, name, or name@version: `client.programs`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def upload(
        self, program: bytes, name: str | None = None, content_type: str = "application/wasm"
    ) -> Program:
        """Upload a program, and point a name at it; return its view.

        `content_type`: of its source, such as "text/javascript"; else it is a module.
        """
        query = {"name": name} if name is not None else {}
        headers = {"Content-Type": content_type}
        call = sending(
            "POST", "/v1/programs", program, query, headers=headers, once=self._transport.new_once()
        )
        return await self._transport.object(Program, call)

    async def get(self, program: str) -> Program:
        return await self._transport.get(Program, _path(program))

    async def delete(self, program: str) -> None:
        """Delete a program with all names that point at it."""
        await self._transport.delete(_path(program))

    def list(self) -> AsyncIterator[Program]:
        """Yield all programs, newest first."""
        return self._transport.pages(Program, "/v1/programs")

    async def versions(self, name: str) -> Versions:
        """Return the versions of a name, newest first; `current` is the one it points at."""
        return await self._transport.page(ProgramVersion, f"{_path(name)}/versions")

    async def point(self, name: str, program: str) -> Program:
        """Point a name at a program (an id, a name, or name@version); return its view."""
        call = sending("PUT", _path(name), {"program": program}, repeatable=True)
        return await self._transport.object(Program, call)

    async def rollback(self, name: str, version: str | None = None) -> Program:
        """Point a name at an older version, by default the one before; LookupError: none is."""
        if version is None:
            versions = iter(await self.versions(name))
            any(each["current"] for each in versions)  # up to the current one
            before = next(versions, None)
            if before is None:
                raise LookupError(f"{name} has no version before the one that it points at")
            version = str(before["id"])
        return await self.point(name, f"{name}@{version}")

    async def delete_version(self, name: str, version: str) -> None:
        """Delete a version that its name does not point at."""
        await self._transport.delete(f"{_path(name)}/versions/{quoted(version)}")

    async def delete_name(self, name: str) -> None:
        """Delete a name with its versions, but for programs that another name has."""
        await self._transport.delete(f"{_path(name)}/versions")


def _path(program: str) -> str:
    return f"/v1/programs/{quoted(program)}"
