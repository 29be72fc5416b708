"""The lineages of all files: which tenant pays for them, and their bounds.

A tenant may keep some times as many entries in its files' lineage, a few bytes each, as its quota
of pages has on the device; one file at most LINEAGE_ENTRIES_MAX in LINEAGE_SPANS_MAX spans. Forks
share a lineage and pay once.

Past a bound a closed trail is dropped (at half of the bounds): its file counts as linear from then
on, and recomputed entries equal the old ones up to rounding. Any other trail *collapses* to one
lost span: such a file may go to host memory or disk, but needs a copy. `assess` tells in advance.
"""

from collections import Counter
from dataclasses import dataclass

from symphony_kernel.kvfs.lineage.planning import home_spans, scratch_bound, scratch_pages_of
from symphony_kernel.kvfs.lineage.spans import Trail, lost_trail, spans_of
from symphony_kernel.protocol.errno import KernelBug
from symphony_kernel.protocol.limits import LINEAGE_ENTRIES_MAX, LINEAGE_SPANS_MAX


@dataclass(slots=True, eq=False)
class KeptTrail:
    """What is kept of a trail: `trail`, or None if tokens and positions say it all."""

    trail: Trail | None = None
    entries: int = 0  # of all its spans
    spans: int = 0
    scratch_pages: int = 0  # of all spans that are not computed in the file, at once
    lost: bool = False  # some of it cannot be recomputed
    bound: int | None = None  # a tighter bound of its scratch pages; computed when needed
    adapters: tuple[str, ...] = ()  # the identities of those that computed its spans

    def fits(self, pages: int, frames: int) -> bool:
        """Whether a file of so many pages can be recomputed on so many frames."""
        if self.lost:
            return False
        if self.trail is None or not self.scratch_pages:
            return True
        if 2 * pages + self.scratch_pages < frames:
            return True
        if self.bound is None:
            self.bound = scratch_bound(self.trail)
        # If an entry is in the file twice, those behind the trail take as many pages as the file.
        return pages + max(pages, self.bound) < frames


@dataclass(slots=True, eq=False)
class Lineage:
    """A trail that files share; the entries of all its spans are charged to `tenant`."""

    tenant: str
    trail: Trail
    kept: KeptTrail
    references: int = 1


class LineageBook:
    """All lineages; a tenant may keep `entries_max` entries in them."""

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self._charged: Counter[str] = Counter()
        self._lineages: dict[Lineage, None] = {}  # in the order in which they were made

    def assess(
        self,
        tenant: str,
        trail: Trail | None,
        instead: Lineage | None = None,
        *,
        keep: bool = False,
        adapter: str = "",
    ) -> KeptTrail:
        """Return what would be kept of a trail in place of a lineage; all with `keep`.

        `adapter` is the file's: a trail of another adapter's entries is not implied.
        """
        own = trail is not None and trail.span.adapter == adapter
        if trail is None or (trail.linear and own):
            return KeptTrail()
        spans = spans_of([trail])
        entries = sum(span.length for span in spans)
        # A closed one is dropped at half of the bounds: the rest is for a tree behind it.
        implied = trail.closed and own
        weight = 2 if implied else 1
        if not keep and not self.within(tenant, weight * len(spans), weight * entries, instead):
            if implied:
                return KeptTrail()
            return KeptTrail(lost_trail(trail.length), lost=True)
        home = home_spans(trail)
        scratch_pages = sum(
            scratch_pages_of(span, span.length) for span in spans if span not in home
        )
        lost = any(span.lost for span in spans)
        adapters = tuple(sorted({span.adapter for span in spans if span.adapter}))
        return KeptTrail(trail, entries, len(spans), scratch_pages, lost, adapters=adapters)

    def within(self, tenant: str, spans: int, entries: int, instead: Lineage | None = None) -> bool:
        """Whether a tenant may keep so much for one file, in place of a lineage."""
        charged = self.charged(tenant)
        if instead is not None and instead.tenant == tenant and instead.references == 1:
            charged -= instead.kept.entries
        return (
            spans <= LINEAGE_SPANS_MAX
            and entries <= LINEAGE_ENTRIES_MAX
            and charged + entries <= self.entries_max
        )

    def open(self, tenant: str, kept: KeptTrail) -> Lineage | None:
        """Return the lineage to keep, with one reference; None if there is none."""
        trail = kept.trail
        if trail is None:
            return None
        lineage = Lineage(tenant, trail, kept)
        self._charged[tenant] += kept.entries
        self._lineages[lineage] = None
        return lineage

    def close(self, lineage: Lineage) -> None:
        """Release a reference to a lineage; the last one uncharges its entries."""
        lineage.references -= 1
        assert lineage.references >= 0, "a lineage was closed more often than it was held"
        if not lineage.references:
            del self._lineages[lineage]
            self._charged[lineage.tenant] -= lineage.kept.entries

    def adapters(self) -> set[str]:
        """Return the identities of all adapters that lineages have."""
        # Of lineages, not of their spans, of which strangers' files may have millions.
        return {adapter for lineage in self._lineages for adapter in lineage.kept.adapters}

    def charged(self, tenant: str) -> int:
        return self._charged[tenant]

    def check_integrity(self, held: dict[Lineage, int]) -> None:
        """Compare the counts with what the files hold; KernelBug."""
        if {each: each.references for each in self._lineages} != held:
            raise KernelBug("the lineages in the book are not those that files hold")
        sums: Counter[str] = Counter()
        for lineage in self._lineages:
            sums[lineage.tenant] += lineage.kept.entries
        if sums != self._charged:
            raise KernelBug(f"tenants are charged {self._charged} entries of lineage, keep {sums}")
