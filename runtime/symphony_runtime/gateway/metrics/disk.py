"""Disk usage of tenants that `DiskBudget.charge` does not count."""

from collections import Counter
from collections.abc import Mapping

from symphony_runtime.gateway.metrics.kernel import KernelsMetrics
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.disk_budget import ROW_BYTES
from symphony_runtime.gateway.storage.store import Store

_KEY_BYTES = 256  # of a request's key with its indexes


async def measure(store: Store, kernel: KernelsMetrics) -> Mapping[str, int]:
    """Return bytes by tenant: secrets, keys of requests, uploaded files, durable KV files."""
    held = Counter(await store.read(_rows))
    for tenant, metrics in (await kernel.latest()).get("tenants", {}).items():
        held[tenant] += metrics.get("durable_bytes", 0)
    return held


def _rows(connection: Connection) -> dict[str, int]:
    held: Counter[str] = Counter()
    for row in connection.execute("SELECT tenant, keys FROM idempotency_counts"):
        held[row["tenant"]] += _KEY_BYTES * int(row["keys"])
    for row in connection.execute("SELECT tenant, files, bytes FROM file_counts"):
        held[row["tenant"]] += ROW_BYTES * int(row["files"]) + int(row["bytes"])
    sql = "SELECT tenant, COUNT(*) AS secrets, SUM(LENGTH(value)) AS size FROM secrets GROUP BY 1"
    for row in connection.execute(sql):
        held[row["tenant"]] += ROW_BYTES * int(row["secrets"]) + int(row["size"])
    return dict(held)
