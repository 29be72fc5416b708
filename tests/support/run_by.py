"""Async tests that a function runs, with what it provides as their parameters.

    @run_by(in_system, "tmp_path", tenant_runs_live_max=0)
    async def test_run_over_quota_is_refused(system: SystemRig, client: Client, *, code: int): ...

calls `in_system(tmp_path, test, tenant_runs_live_max=0)`. That passes the positional parameters;
pytest passes what is named here and the test's keyword-only parameters. A test that needs nothing
of the kind is a plain `async def`: tests/conftest.py runs it with `asyncio.run`.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any

AsyncTest = Callable[..., Coroutine[Any, Any, Any]]


def run_by(
    runner: Callable[..., Any], *fixtures: str, **options: Any
) -> Callable[[AsyncTest], Callable[..., None]]:
    """Run a test as `runner(*fixtures, test, **options)`, in virtual or in real time."""

    def decorate(test: AsyncTest) -> Callable[..., None]:
        parameters = signature(test).parameters.values()
        wanted = [each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
        kind = Parameter.POSITIONAL_OR_KEYWORD  # as Hypothesis' @given needs it
        asked = Signature([Parameter(name, kind) for name in dict.fromkeys((*fixtures, *wanted))])

        @wraps(test)
        def run(*args: Any, **named: Any) -> None:
            given = asked.bind(*args, **named).arguments

            async def body(*provided: Any) -> None:
                await test(*provided, **{name: given[name] for name in wanted})

            runner(*(given[name] for name in fixtures), body, **options)

        run.__dict__["__signature__"] = asked
        return run

    return decorate
