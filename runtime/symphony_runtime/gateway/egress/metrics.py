"""Counters of egress calls for `/metrics`."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from symphony_kernel.protocol.errno import Errno, SyscallError

KINDS = ("http", "tool", "tools")  # of a worker's Ask


@dataclass(slots=True)
class EgressMetrics:
    """Counts calls since the gateway's start, by kind: tool, tools, http."""

    made: Counter[str] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)  # by kind, and errno's name
    tool_errors: int = 0  # tool answers whose `ok` is false

    @contextlib.contextmanager
    def counted(self, kind: str) -> Iterator[None]:
        """Count a call, and the errno of its failure; a cancelled call has not failed."""
        self.made[kind] += 1
        try:
            yield
        except SyscallError as error:
            self.failed[kind, error.errno.name] += 1
            raise
        except Exception:
            self.failed[kind, Errno.EIO.name] += 1  # the program's errno for a bug of ours
            raise
