"""Who pays for lineage, and what becomes of it past a bound.

A tenant may keep some times as many entries in its files' lineage, a few bytes each, as its quota
of pages has on the device; one file at most LINEAGE_ENTRIES_MAX in LINEAGE_SPANS_MAX spans. Forks
share a lineage and pay once.

Past a bound a closed trail is dropped (at half of the bounds): its file counts as linear from then
on, and what is computed again equals what was there up to rounding. Any other *collapses* to one
lost span: such a file may go to host memory or disk, and never to where only tokens are kept.
Whoever would make it so asks `judge` first what is to come.
"""

from dataclasses import dataclass

from symphony_kernel.kvfs.lineage.planning import bench_pages, most_benches
from symphony_kernel.kvfs.lineage.spans import Trail, lost_trail, spans_of
from symphony_kernel.protocol.errno import KernelBug
from symphony_kernel.protocol.limits import LINEAGE_ENTRIES_MAX, LINEAGE_SPANS_MAX


@dataclass(slots=True, eq=False)
class Verdict:
    """What is to be kept of a trail: `trail`, None where tokens and positions say it all."""

    trail: Trail | None = None
    entries: int = 0  # of all its spans
    spans: int = 0
    benches: int = 0  # pages that all of them would take beside the file, computed at once
    lost: bool = False  # some of it cannot be computed again
    collapsed: bool = False  # for its size: nothing of it could be
    most: int | None = None  # a bound of the pages beside the file that it does take

    def fits(self, pages: int, frames: int) -> bool:
        """Whether a file of so many pages can be computed again on so many frames."""
        if self.lost:
            return False
        if self.trail is None or 2 * pages + self.benches < frames:
            return True
        if self.most is None:
            self.most = most_benches(self.trail)
        # Where an entry stands in the file twice, those behind the trail take as much as the file.
        return pages + max(pages, self.most) < frames


@dataclass(slots=True, eq=False)
class Lineage:
    """A trail that files share; the entries of all its spans are charged to `tenant`."""

    tenant: str
    trail: Trail
    kept: Verdict
    references: int = 1

    @property
    def entries(self) -> int:
        """Entries of all its spans."""
        return self.kept.entries


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

    def judge(
        self,
        tenant: str,
        trail: Trail | None,
        instead: Lineage | None = None,
        *,
        keep: bool = False,
    ) -> Verdict:
        """Return what is to be kept of a trail, in the place of a file's lineage so far.

        `keep`: past any bound.
        """
        if trail is None or trail.linear:
            return Verdict()
        spans = spans_of([trail])
        entries = sum(span.length for span in spans)
        # A closed one goes at half of the bounds: there is room for the tree behind it then.
        weight = 2 if trail.closed else 1
        if not keep and not self.within(tenant, weight * len(spans), weight * entries, instead):
            if trail.closed:
                return Verdict()
            return Verdict(lost_trail(trail.length), lost=True, collapsed=True)
        benches = sum(bench_pages(span, span.length) for span in spans)
        lost = any(span.lost for span in spans)
        return Verdict(trail, entries, len(spans), benches, lost)

    def within(self, tenant: str, spans: int, entries: int, instead: Lineage | None = None) -> bool:
        """Whether so much may be kept of one file of a tenant, in the place of a lineage."""
        charged = self.charged(tenant)
        if instead is not None and instead.tenant == tenant and instead.references == 1:
            charged -= instead.entries
        return (
            spans <= LINEAGE_SPANS_MAX
            and entries <= LINEAGE_ENTRIES_MAX
            and charged + entries <= self.entries_max
        )

    def open(self, tenant: str, verdict: Verdict) -> Lineage | None:
        """Return the lineage of what is to be kept, held once; None where that is nothing."""
        trail = verdict.trail
        if trail is None:
            return None
        lineage = Lineage(tenant, trail, verdict)
        if lineage.entries:
            self._charged[tenant] = self.charged(tenant) + lineage.entries
        self._lineages[lineage] = None
        return lineage

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
            lost=sum(each.kept.lost for each in self._lineages),
            entries=sum(self._charged.values()),
        )
