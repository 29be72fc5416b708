"""What guests' calls cross by, compiled, where this machine can compile."""

from functools import cache

import pytest
from symphony_runtime.engine.hostcalls.build import built_library
from symphony_runtime.engine.hostcalls.compiled_calls import CompiledHostCalls
from symphony_runtime.engine.hostcalls.library import HostCallsUnavailable


@cache
def _found() -> CompiledHostCalls | str:
    try:
        return CompiledHostCalls(built_library())
    except HostCallsUnavailable as error:
        return str(error)


def found() -> CompiledHostCalls | None:
    """Return it, compiled now if need be; nothing where that cannot be."""
    crossing = _found()
    return None if isinstance(crossing, str) else crossing


def compiled() -> CompiledHostCalls:
    """Return it, or skip the test and say why there is none on this machine."""
    crossing = _found()
    if isinstance(crossing, str):
        pytest.skip(f"no compiled crossing: {crossing}")
    return crossing
