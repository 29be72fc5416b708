"""Who pays for lineage, and what becomes of it past a bound.

A tenant may keep some times as many entries in its files' lineage, a few bytes each, as its quota
of pages has on the device; one file at most LINEAGE_ENTRIES_MAX in LINEAGE_SPANS_MAX spans. Forks
share a lineage and pay once.

Past a bound no call fails. A closed trail is dropped (at half of the bounds): its file counts as
linear from then on, and what is computed again equals what was there up to rounding. Any other
becomes one *lost* span: such a file may go to host memory or disk, and never to where only tokens
are kept. While some of a file is nowhere, its lineage is what there is of it: then it may have
twice as much, and past that the call that would add to it is refused (EDQUOT).
"""

from dataclasses import dataclass
from typing import Final

from symphony_kernel.kvfs.lineage.trails import Trail, lost_trail, spans_of
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import LINEAGE_ENTRIES_MAX, LINEAGE_SPANS_MAX

_KEPT_TIMES: Final = 2  # the bounds, for what is nowhere else


@dataclass(slots=True, eq=False)
class Lineage:
    """A trail that files share; `entries` of all its spans are charged to `tenant`."""

    tenant: str
    trail: Trail
    entries: int
    lost: bool  # some of it cannot be computed again
    references: int = 1


@dataclass(frozen=True, slots=True)
class LineageStatistics:
    """Files' lineages, and the entries charged for them."""

    lineages: int
    lost: int
    entries: int


class LineageBook:
    """All lineages; a tenant may keep `entries_max` entries in them."""

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self._charged: dict[str, int] = {}
        self._lineages: dict[Lineage, None] = {}  # in the order in which they were made

    def open(self, tenant: str, trail: Trail | None, keep: bool = False) -> Lineage | None:
        """Return a trail's lineage, held once; None where tokens and positions say it all.

        `keep`: past any bound, since some of what it tells of is nowhere else.
        """
        if trail is None or trail.linear:
            return None
        spans = spans_of([trail])
        entries = sum(span.length for span in spans)
        charged = self._charged.get(tenant, 0)
        # A closed one goes at half of the bounds: there is room for the tree behind it then.
        weight = 2 if trail.closed else 1
        if not keep and (
            weight * len(spans) > LINEAGE_SPANS_MAX
            or weight * entries > LINEAGE_ENTRIES_MAX
            or charged + weight * entries > self.entries_max
        ):
            if trail.closed:
                return None
            trail, spans, entries = lost_trail(trail.length), [], 0
        lost = not spans or any(span.lost for span in spans)
        lineage = Lineage(tenant, trail, entries, lost)
        if entries:
            self._charged[tenant] = charged + entries
        self._lineages[lineage] = None
        return lineage

    def check(self, tenant: str, trail: Trail | None) -> None:
        """Check that a trail could be kept past the bounds, as far as any may; SyscallError EDQUOT.

        What computes again what is nowhere is planned on the kernel's loop.
        """
        if trail is None or trail.linear:
            return
        spans = spans_of([trail])
        entries = sum(span.length for span in spans)
        if (
            len(spans) > _KEPT_TIMES * LINEAGE_SPANS_MAX
            or entries > _KEPT_TIMES * LINEAGE_ENTRIES_MAX
            or self.charged(tenant) + entries > _KEPT_TIMES * self.entries_max
        ):
            raise SyscallError(
                Errno.EDQUOT, f"it comes from {entries} entries of {len(spans)} calls"
            )

    def close(self, lineage: Lineage) -> None:
        """Let go of a lineage once; the last one to do so gives its entries back."""
        lineage.references -= 1
        assert lineage.references >= 0, "a lineage was closed more often than it was held"
        if not lineage.references:
            del self._lineages[lineage]
            if not lineage.entries:
                return
            left = self._charged[lineage.tenant] - lineage.entries
            if left:
                self._charged[lineage.tenant] = left
            else:
                del self._charged[lineage.tenant]

    def charged(self, tenant: str) -> int:
        """Return how many entries a tenant keeps."""
        return self._charged.get(tenant, 0)

    def check_integrity(self, held: dict[Lineage, int]) -> None:
        """Compare the counts with what the files hold; KernelBug."""
        if {each: each.references for each in self._lineages} != held:
            raise KernelBug("the lineages in the book are not those that files hold")
        sums: dict[str, int] = {}
        for lineage in self._lineages:
            if lineage.entries:
                sums[lineage.tenant] = sums.get(lineage.tenant, 0) + lineage.entries
        if sums != self._charged:
            raise KernelBug(f"tenants are charged {self._charged} entries of lineage, keep {sums}")

    def statistics(self) -> LineageStatistics:
        """Return what there is."""
        return LineageStatistics(
            lineages=len(self._lineages),
            lost=sum(each.lost for each in self._lineages),
            entries=sum(self._charged.values()),
        )
