"""What a test leaves to Python's collector: objects that hold each other in a circle."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def left_to_collector(package: str) -> Iterator[set[str]]:
    """Give a set that gets the names of the package's classes of which circles were left."""
    found: set[str] = set()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        names = {f"{type(each).__module__}.{type(each).__name__}" for each in gc.garbage}
        found |= {name for name in names if name.startswith(f"{package}.")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
