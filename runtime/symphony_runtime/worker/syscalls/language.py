"""Calls of language modules: the source that they run, and the end of a program that failed."""

from typing import NoReturn

from symphony_kernel.protocol.limits import PROGRAM_REASON_BYTES_MAX

from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.run import TRAPPED, Ending
from symphony_runtime.worker.syscalls import validation


def source_read(instance: Instance, pointer: int, capacity: int) -> int:
    """Write the program's source, as `input_read` does the input; 0 bytes for a Wasm program."""
    instance.fiber.check(pointer, capacity)
    return validation.put(instance, pointer, capacity, instance.source)


def fail(instance: Instance, pointer: int, length: int) -> NoReturn:
    """End the program as trapped, with a reason in UTF-8; a longer one is cut.

    The words are the program's own, so the reason begins as no reason of the server does.
    """
    instance.fiber.check(pointer, length)
    words = instance.fiber.read(pointer, min(length, PROGRAM_REASON_BYTES_MAX))
    text = words.decode("utf-8", "replace")
    text = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
    raise Ending(TRAPPED, f"failed: {text or 'no reason'}")
