"""What only the native kernels promise is tested where a machine can have them."""

from functools import cache

from symphony_kernel.executor.native.library import Library, load_library
from symphony_kernel.platform.build_cache import LibraryUnavailable

from tests.support.requirements import lacking


@cache
def _found() -> Library | str:
    try:
        return load_library()
    except LibraryUnavailable as error:
        return str(error)


def native_library() -> Library:
    """Return the native kernels, or skip the test and say why there are none on this machine."""
    found = _found()
    if isinstance(found, str):
        lacking("native", f"no native kernels: {found}")
    return found
