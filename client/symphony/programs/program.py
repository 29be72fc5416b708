"""`@symphony.program`: an async function that is a program."""

import asyncio
import contextlib
import functools
import json
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import aiohttp

from symphony.attached.errors import SymphonyError
from symphony.attached.place import find_server
from symphony.attached.run import attach
from symphony.client.refusals import ANSWER_BYTES_MAX, problem_of, whole_answer
from symphony.programs.schema import Signature
from symphony.programs.source import source_of, version_of, with_manifest

P = ParamSpec("P")
T = TypeVar("T")
PYTHON = "text/x-python"
_PACKAGE = Path(__file__).parents[1]


class DeployError(SymphonyError):
    """The server did not take a program's source; `status` is of HTTP."""

    def __init__(self, words: str, status: int) -> None:
        super().__init__(words)
        self.status = status


class Program(Generic[P, T]):
    """An async function as a program; called, it is the function.

    `input_schema` and `output_schema` are JSON schemas of its parameters and of what it returns.
    `version` is the digest of its source.
    """

    def __init__(
        self,
        function: Callable[P, Awaitable[T]],
        name: str | None,
        permissions: Sequence[str],
        options: Mapping[str, Any],
    ) -> None:
        if not asyncio.iscoroutinefunction(function):
            raise TypeError(f"{getattr(function, '__name__', function)} must be an `async def`")
        functools.update_wrapper(self, function)
        self._function, self._options = function, options
        self.name = name or function.__name__
        self.permissions = tuple(permissions)
        self.signature = Signature(function)

    @property
    def input_schema(self) -> dict[str, Any]:
        return self.signature.input_schema

    @property
    def output_schema(self) -> dict[str, Any]:
        return self.signature.output_schema

    @functools.cached_property
    def source(self) -> str:
        """The source of its module, or its own in a notebook; OSError: there is none."""
        return source_of(self._function)

    @property
    def version(self) -> str:
        return version_of(self.source)

    @property
    def deployed_source(self) -> str:
        """The source as a server gets it: with a manifest before its first line."""
        manifest = {
            "description": (self.__doc__ or "").strip(),
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
            "permissions": list(self.permissions),
        }
        return with_manifest(self.source, manifest)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Call the function, in the run that is attached."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<program {self.name}>"

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Attach to a server, run the function there, and return what it returns.

        Arguments and result are checked by their types, as JSON would carry them.

        Raises TypeError and ValueRefused for wrong arguments; AttachError; what the function
        raises, whose traceback is the function's own.
        """
        given = self.signature.parse(self.signature.bind(*args, **kwargs))
        function = cast("Callable[..., Awaitable[T]]", self._function)
        async with attach(**self._options):
            try:
                result = await function(**given)
            except Exception as error:
                _add_place(error, self.name)
                raise
        return cast("T", self.signature.load(self.signature.dump(result)))

    def run_sync(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the same from code that is not async, a notebook's cells among it."""
        from symphony.attached.sync import run_coroutine

        return run_coroutine(self.run(*args, **kwargs))

    async def deploy(
        self, name: str | None = None, *, server: str | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """Upload the source as a Python program of the server; return how the server has it.

        Raises DeployError: the server has no Python, or refuses the source.
        """
        url, key = find_server(
            server or self._options.get("server"), key or self._options.get("key")
        )
        headers = {"Authorization": f"Bearer {key}", "Content-Type": PYTHON}
        query, body = {"name": name or self.name}, self.deployed_source.encode()
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(
                f"{url}/v1/programs", params=query, data=body, allow_redirects=False
            ) as response,
        ):
            if response.status not in (200, 201):
                raise _refused(response.status, await problem_of(response))
            answer: Any = None
            with contextlib.suppress(ValueError):
                answer = json.loads(await whole_answer(response, ANSWER_BYTES_MAX))
            if isinstance(answer, dict):
                return cast("dict[str, Any]", answer)
            raise _refused(response.status, answer)


def _add_place(error: Exception, name: str) -> None:
    """Add to an error the program's own line that it came from, behind the SDK's frames."""
    own = [
        f"{frame.filename}:{frame.lineno}, in {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(_PACKAGE)
    ]
    if own:
        error.add_note(f"program {name}: {own[-1]}")


def _refused(status: int, answer: Any) -> DeployError:
    known = answer if isinstance(answer, dict) else {}
    words = str(known.get("detail") or f"the server answers {status}")
    if status == 415 or "WebAssembly module" in words:
        words = (
            "this server takes no Python source: run the program attached, with `.run()`, or use"
            f" a server that has it ({words})"
        )
    return DeployError(words, status)


@overload
def program(function: Callable[P, Awaitable[T]], /) -> Program[P, T]: ...


@overload
def program(
    *, name: str | None = None, permissions: Sequence[str] = (), **options: Any
) -> Callable[[Callable[P, Awaitable[T]]], Program[P, T]]: ...


def program(
    function: Callable[P, Awaitable[T]] | None = None,
    /,
    *,
    name: str | None = None,
    permissions: Sequence[str] = (),
    **options: Any,
) -> Program[P, T] | Callable[[Callable[P, Awaitable[T]]], Program[P, T]]:
    """Make a program of an async function; with options, those of `attach` for its runs.

    `permissions` are those that it needs when it is deployed: "http", "tool".

    Raises TypeError if it is no `async def`, and SignatureError for types without a JSON schema.
    """
    if function is not None:
        return Program(function, name, permissions, options)
    return lambda given: Program(given, name, permissions, options)
