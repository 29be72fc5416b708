"""What spans share: their tenant, their texts, and the counts of what became of them."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

TENANT: Final = "symphony.tenant"  # attribute of spans


def clean(text: str, most: int) -> str:
    """Return the beginning of a client's text as one that can be sent.

    Lone surrogates, of a header that is not UTF-8, would make the exporter lose a whole batch.
    """
    return text[:most].encode("utf-8", "replace").decode()


class SpanCounts:
    """Ended spans: those that wait, by tenant, and what became of the others."""

    def __init__(self, queue_max: int) -> None:
        self.exported = 0
        self.failed = 0  # the collector did not take them
        self.dropped = 0  # the queue, the tenant's part of it or the run's bound was full
        self._queue_max = queue_max
        self._tenant_max = max(1, queue_max // 2)
        self._waiting = 0
        self._tenants: Counter[str] = Counter()
        self._lock = threading.Lock()  # the exporter has a thread of its own

    def admit(self, span: "ReadableSpan") -> bool:
        """Count a span that is about to wait; False: it does not fit, and is dropped."""
        tenant = _tenant(span)
        with self._lock:
            full = self._waiting >= self._queue_max
            if full or self._tenants[tenant] >= self._tenant_max:
                self.dropped += 1
                return False
            self._waiting += 1
            self._tenants[tenant] += 1
        return True

    def drop_unmade(self) -> None:
        """Count a span that was not made: its run has too many."""
        with self._lock:
            self.dropped += 1

    def take(self, spans: "Sequence[ReadableSpan]") -> None:
        """Count spans that wait no longer."""
        with self._lock:
            self._waiting -= len(spans)
            self._tenants.subtract(map(_tenant, spans))
            self._tenants += Counter()  # without the tenants that have none

    @property
    def waiting(self) -> int:
        with self._lock:
            return self._waiting


def _tenant(span: "ReadableSpan") -> str:
    """Return the tenant that a span is of; "" for a request without a valid key."""
    return str((span.attributes or {}).get(TENANT, ""))
