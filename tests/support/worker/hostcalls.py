"""What guests' calls cross by, compiled, where this machine can compile."""

from functools import cache

import pytest
from symphony_runtime.engine.hostcalls.build import built_library
from symphony_runtime.engine.hostcalls.compiled_calls import Crossing
from symphony_runtime.engine.hostcalls.library import CrossingUnavailable


@cache
def _found() -> Crossing | str:
    try:
        return Crossing(built_library())
    except CrossingUnavailable as error:
        return str(error)


def found() -> Crossing | None:
    """Return it, compiled now if need be; nothing where that cannot be."""
    crossing = _found()
    return None if isinstance(crossing, str) else crossing


def compiled() -> Crossing:
    """Return it, or skip the test and say why there is none on this machine."""
    crossing = _found()
    if isinstance(crossing, str):
        pytest.skip(f"no compiled crossing: {crossing}")
    return crossing
