"""`GET /metrics`: the metrics of gateway and kernel, in Prometheus' text format.

    KernelMetrics, RunMetrics, roles  ->  families  ->  text

Names are vLLM's where vLLM has the metric (`symphony:` for `vllm:`): see docs/reference/metrics.md.
The admin key sees everything, by tenant. A tenant's key sees the server's sums if it is the only
tenant, else only its own runs: a sum over two tenants would tell each about the other.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from symphony_kernel.protocol.limit_table import HIT

from symphony_runtime.gateway.admission.admission import REASONS
from symphony_runtime.gateway.batches.records import ENDED, LIVE
from symphony_runtime.gateway.egress.metrics import KINDS, EgressMetrics
from symphony_runtime.gateway.http.context import Services
from symphony_runtime.gateway.metrics.counters import KILL_KINDS, OTHERS, TenantMetrics
from symphony_runtime.gateway.metrics.kernel import add_up
from symphony_runtime.gateway.metrics.process import ProcessMetrics, read_role
from symphony_runtime.gateway.otlp.counts import SpanCounts
from symphony_runtime.gateway.runs.record import FINAL

if TYPE_CHECKING:
    from symphony_runtime.gateway.otlp.tracing import Tracing

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "symphony:"
_Labels = Mapping[str, str]
_Samples = Iterable[tuple[_Labels, float]]


async def render(server: Services, tenant: str | None, batches: Mapping[str, int]) -> bytes:
    """Return the text for the admin (`tenant` None), or for a tenant's key.

    `batches` are the numbers of batches by status.
    """
    kernels = await server.kernel_metrics.by_model()
    kernel = add_up(list(kernels.values()))
    # Of several models only what is measured of one of them has its name.
    text = _Text(next(iter(kernels)) if len(kernels) == 1 else "")
    if tenant is None:
        families = [
            *_families(text, _tenants(server, kernel)),
            *_server(text, server, kernels),
            *_operators(server, batches),
        ]
    elif server.keys.is_only_tenant(tenant):
        live, counted = server.runs.live_by_tenant(), server.runs.metrics.tenants()
        names = {*kernel.get("tenants", {}), *counted, *live}
        whole = _Part.of(server, kernel, names, {})
        families = [*_families(text, [whole]), *_server(text, server, kernels)]
    else:
        families = list(_families(text, [_Part.of(server, kernel, [tenant], {})]))
    return generate_latest(_Families(families))


class _Families(Collector):
    """A collector of families that are already made."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


# --- Runs: of all tenants, by tenant, or of one --------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Part:
    """The sums of some tenants' runs, and the labels that they are shown with."""

    labels: _Labels
    live: int
    held_up: int  # runs that wait for their tenant's rate limit
    counts: TenantMetrics
    kernel: Counter[str]
    disk: int

    @staticmethod
    def of(
        server: Services, kernel: dict[str, Any], names: Iterable[str], labels: _Labels
    ) -> "_Part":
        counts, live, disk, held = TenantMetrics(), 0, 0, Counter[str]()
        held_up, stalled = 0, server.runs.held_up
        used, counted = kernel.get("tenants", {}), server.runs.metrics.tenants()
        live_runs = server.runs.live_by_tenant()
        for name in names:
            live += live_runs.get(name, 0)
            disk += server.store.disk.held(name)
            if name in counted:
                counts.add(counted[name])
            held.update(used.get(name, {}))
            held_up += stalled[name]
        return _Part(labels, live, held_up, counts, held, disk)


def _tenants(server: Services, kernel: dict[str, Any]) -> list[_Part]:
    """Return a part for each tenant with a label of its own, and one for the others."""
    runs = server.runs.metrics
    names = {*kernel.get("tenants", {}), *server.runs.live_by_tenant()}
    for name in sorted(names):
        runs.of_tenant(name)  # reserves a label of its own, if one is left
    labelled = [name for name in runs.tenants() if name != OTHERS]
    parts = [_Part.of(server, kernel, [name], {"tenant": name}) for name in labelled]
    if OTHERS in runs.tenants():
        rest = {OTHERS, *names}.difference(labelled)
        parts.append(_Part.of(server, kernel, rest, {"tenant": OTHERS}))
    return parts


def _families(text: "_Text", parts: list[_Part]) -> Iterator[Metric]:
    """Yield the metrics of runs, each part with its labels."""

    def each(key: str) -> _Samples:
        return [(part.labels, part.kernel[key]) for part in parts if key in part.kernel]

    def used(key: str, unit: float = 1.0) -> _Samples:
        return [(part.labels, part.counts.usage[key] * unit) for part in parts]

    yield text.gauge("runs_live", "runs that were admitted and have not ended",
                     [(part.labels, part.live) for part in parts])  # fmt: skip
    yield text.gauge("runs_held_up", "runs that their tenant's rate limit holds up",
                     [(part.labels, part.held_up) for part in parts])  # fmt: skip
    yield text.gauge("tenant_disk_bytes", "bytes that tenants hold in the data directory",
                     [(part.labels, part.disk) for part in parts])  # fmt: skip
    yield text.counter("runs_started", "runs that went to a worker",
                       [(part.labels, part.counts.started) for part in parts])  # fmt: skip
    yield text.counter(
        "request_success", "ended runs, by status",
        [({**part.labels, "finished_reason": status}, part.counts.ended[status])
         for part in parts for status in FINAL],
    )  # fmt: skip
    yield text.counter(
        "runs_killed", "killed runs, by reason",
        [({**part.labels, "reason": kind}, part.counts.killed[kind])
         for part in parts for kind in KILL_KINDS],
    )  # fmt: skip
    yield text.counter("limit_hits", "limits that were reached, by name", _limit_hits(parts))
    yield text.counter("prompt_tokens", "tokens of preds with several", each("prompt_tokens"))
    yield text.counter("generation_tokens", "sampled tokens", each("completion_tokens"))
    yield text.counter("prompt_tokens_cached", "entries opened or appended instead of computed",
                       each("cached_tokens"))  # fmt: skip
    yield text.counter("draft_tokens", "tokens that the OpenAI routes drafted",
                       [(part.labels, part.counts.drafted) for part in parts])  # fmt: skip
    yield text.counter("draft_tokens_accepted", "drafted tokens that were right",
                       [(part.labels, part.counts.accepted) for part in parts])  # fmt: skip
    yield text.gauge("kv_pages_held", "pages that are charged", each("pages"))
    yield text.gauge("kv_files", "live KV files", each("files"))
    yield text.gauge("kv_handles", "open handles and grants", each("handles"))
    yield text.counter("program_cpu_seconds", "processor time of programs that have ended",
                       used("cpu_ms", 1e-3))  # fmt: skip
    yield text.counter("program_calls", "calls of programs that have ended", used("syscalls"))


def _limit_hits(parts: Iterable[_Part]) -> Iterator[tuple[_Labels, float]]:
    """Yield how often limits were reached; `cpu_ms` even if never."""
    for part in parts:
        hits = Counter({"cpu_ms": 0})
        hits.update(part.counts.limits)
        hits.update({k.removeprefix(HIT): n for k, n in part.kernel.items() if k.startswith(HIT)})
        for limit, count in sorted(hits.items()):
            yield {**part.labels, "limit": limit}, count


# --- The server ----------------------------------------------------------------------------------
def _server(
    text: "_Text", server: Services, kernels: Mapping[str, dict[str, Any]]
) -> Iterator[Metric]:
    """Yield the metrics of the models and the device, and the latencies of runs."""
    merged: dict[str, Metric] = {}
    for model, kernel in kernels.items():
        for family in _device(_Text(model), kernel):
            merged.setdefault(family.name, family)
            if merged[family.name] is not family:
                merged[family.name].samples.extend(family.samples)
    yield from merged.values()
    runs = server.runs.metrics
    for name, counted, words in (
        ("e2e_request_latency_seconds", runs.run_seconds, "from a run's admission to its end"),
        ("run_start_seconds", runs.start_seconds, "from a run's admission to its worker"),
        ("time_to_first_message_seconds", runs.first_message_seconds,
         "from a run's admission to the first message that it sent"),
    ):  # fmt: skip
        yield text.histogram(name, words, counted.view())


def _device(text: "_Text", kernel: dict[str, Any]) -> Iterator[Metric]:
    """Yield the metrics of one model's kernel."""
    for name, key, words in _GAUGES:
        if key in kernel:
            yield text.gauge(name, words, kernel[key])
    if "pages" in kernel:
        words = "share of the pages in use; 1 is all"
        yield text.gauge("kv_cache_usage_perc", words, _usage(kernel))
    for name, key, unit, words in _COUNTERS:
        if key in kernel:
            yield text.counter(name, words, kernel[key] * unit)
    for name, key, words in _HISTOGRAMS:
        if key in kernel.get("histograms", {}):
            yield text.histogram(name, words, kernel["histograms"][key])


_GAUGES = (
    ("num_requests_running", "lips_running", "runs with a row in the current step"),
    ("num_requests_waiting", "lips_waiting", "runs with preds that wait for a step"),
    ("instances", "instances", "live instances: runs and their children"),
    ("preds_waiting", "waiting", "preds that wait for a step"),
    ("preds_waiting_for_pages", "waiting_for_pages", "preds that wait for free pages"),
    ("kv_pages", "pages", "pages of the pool"),
    ("kv_pages_free", "pages_free", "free pages"),
    ("kv_pages_shared", "pages_shared", "pages that several files share"),
    ("prefix_cache_pages", "prefix_cache_pages", "pages of offered prefixes"),
    ("kv_durable_bytes", "durable_bytes", "bytes of durable KV files on disk"),
    ("kv_pages_on_host", "tiers_host_pages", "held pages in host memory, not on the device"),
    ("kv_pages_on_disk", "tiers_disk_pages", "held pages in the disk tier only"),
    ("kv_pages_tokens_only", "tiers_tokens_pages", "held pages that are recomputed when used"),
    ("kv_host_slots", "tiers_host_slots", "pages that fit into host memory"),
    ("kv_host_slots_used", "tiers_host_slots_used", "of them in use, copies included"),
    ("kv_disk_slots", "tiers_disk_slots", "pages that fit into the disk tier"),
    ("kv_disk_slots_used", "tiers_disk_slots_used", "of them in use, copies included"),
)
_COUNTERS = (
    ("num_preemptions", "preds_starved", 1, "preds that failed for lack of pages"),
    ("preds", "preds", 1, "preds that succeeded"),
    ("preds_guessed", "preds_guessed", 1, "preds that were predicted and computed in advance"),
    ("preds_guessed_in_vain", "preds_guessed_in_vain", 1, "predicted rows that no pred used"),
    ("steps", "steps", 1, "steps of the model"),
    ("step_rows", "rows", 1, "rows of all steps; divided by steps: the mean batch"),
    ("decode_rows", "decode_rows", 1, "rows of one token"),
    ("decode_steps", "decode_steps", 1, "steps with a row of one token"),
    ("tokens_prefilled", "prefill_tokens", 1, "tokens computed in rows of several"),
    ("device_busy_seconds", "step_ms", 1e-3, "time of steps; its rate is the busy share"),
    ("kernel_calls", "calls", 1, "calls that workers made"),
    ("kernel_calls_failed", "failed", 1, "calls that failed with an errno"),
    ("kv_slots_copied", "copies", 1, "entries copied on a write to a shared page"),
    ("prefix_cache_queries", "prefix_cache_query_tokens", 1, "tokens looked up"),
    ("prefix_cache_hits", "prefix_cache_hit_tokens", 1, "tokens found"),
    ("prefix_cache_shared", "prefix_cache_shared_tokens", 1, "tokens taken with `share`"),
    ("prefix_cache_evicted_pages", "prefix_cache_evicted_pages", 1, "evicted pages of prefixes"),
    ("kv_pages_saved", "tiers_saved_pages", 1, "pages copied from the device to host memory"),
    ("kv_pages_loaded", "tiers_loaded_pages", 1, "pages copied from host memory to the device"),
    ("kv_pages_dropped", "tiers_dropped_pages", 1, "pages reduced to their tokens"),
    ("kv_pages_spilled", "tiers_spilled_pages", 1, "pages written from host memory to disk"),
    ("kv_pages_read", "tiers_read_pages", 1, "pages read from disk"),
    ("kv_bytes_moved", "tiers_moved_bytes", 1, "bytes copied between device and host memory"),
    ("kv_move_seconds", "tiers_move_ms", 1e-3, "time of these copies"),
    ("kernel_audits", "audits", 1, "audits of an idle kernel"),
    ("kernel_stalls", "stalls", 1, "faults that left requests without a step"),
)
_HISTOGRAMS = (
    ("time_to_first_token_seconds", "time_to_first_token_seconds",
     "from a run's first pred to the first that gave a token or a distribution"),
    ("inter_token_latency_seconds", "inter_token_latency_seconds",
     "between two tokens of one KV file"),
    ("iteration_tokens_total", "step_tokens", "new tokens of a step"),
    ("iteration_rows", "step_rows", "rows of a step"),
    ("iteration_seconds", "step_seconds", "time of a step"),
)  # fmt: skip


def _usage(kernel: dict[str, Any]) -> float:
    idle = kernel.get("prefix_cache_idle_pages", 0)  # evicted as soon as pages are needed
    used = kernel["pages"] - kernel["pages_free"] - idle
    return float(used / kernel["pages"])


def _operators(server: Services, batches: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the metrics that only operators see: processes, requests, batches, the database."""
    text, roles, silent = _Text(""), _roles(server), server.progress.silent
    there = {name: found for name, found in roles.items() if found is not None}
    yield text.gauge("role_up", "1 while the process runs",
                     [({"role": name}, name in there) for name in roles])  # fmt: skip
    yield text.gauge("role_hangs", "1 while the process sends no heartbeat",
                     [({"role": name}, name in silent) for name in roles])  # fmt: skip
    yield text.counter("role_cpu_seconds", "processor time of the process",
                       [({"role": n}, f.cpu_seconds) for n, f in there.items()])  # fmt: skip
    yield text.gauge("role_resident_memory_bytes", "resident memory of the process",
                     [({"role": n}, f.resident_bytes) for n, f in there.items()])  # fmt: skip
    yield text.gauge(
        "role_open_fds", "open descriptors of the process",
        [({"role": n}, f.descriptors) for n, f in there.items() if f.descriptors is not None],
    )  # fmt: skip
    words = "kernels that replaced a crashed one"
    yield text.counter("kernel_restarts", words, server.kernel_metrics.restarts)
    yield text.counter(
        "http_responses", "answers, by route and status",
        [({"route": route, "status": str(status)}, count)
         for (route, status), count in sorted(server.runs.metrics.responses.items())],
    )  # fmt: skip
    samples = [({"status": each}, batches.get(each, 0)) for each in (*LIVE, *ENDED)]
    yield text.gauge("batches", "batches, by status", samples)
    written = server.store.statistics()
    for name, words in (
        ("writes", "operations that changed the database"),
        ("commits", "transactions; one holds several operations"),
        ("failed_writes", "operations that failed"),
        ("unwritten_events", "events of live runs that were held in memory only"),
    ):
        yield text.counter(f"store_{name}", words, written[name])
    words = "lines of the audit log that were lost"
    yield text.counter("audit_notes_lost", words, server.administration.audit.lost)
    yield from _overload(text, server)
    yield from _egress(text, server.runs.egress.metrics)
    yield from _traces(text, server.runs.tracing)


def _traces(text: "_Text", tracing: "Tracing | None") -> Iterator[Metric]:
    counts = tracing.counts if tracing is not None else SpanCounts(0)
    results = {"exported": counts.exported, "failed": counts.failed, "dropped": counts.dropped}
    yield text.counter("otlp_spans", "spans of the operator's traces, by what became of them",
                       [({"result": result}, n) for result, n in results.items()])  # fmt: skip
    yield text.gauge("otlp_spans_waiting", "ended spans that are not sent yet", counts.waiting)


def _roles(server: Services) -> dict[str, ProcessMetrics | None]:
    """Return the metrics of every expected process, None for one that is away."""
    models, workers = server.runs.models, server.runs.workers
    pids = {"gateway": os.getpid(), **{each.kernel_role: each.kernel.pid for each in models}}
    for name in workers.expected:
        worker = workers.workers.get(name)
        pids[name] = worker.pid if worker is not None else 0
    return {name: read_role(pid) if pid else None for name, pid in pids.items()}


_DISK = {
    "disk_free_bytes": "free space of the data directory's file system",
    "disk_reserve_bytes": "disk space reserved for deletions and ends of runs",
    "disk_used_bytes": "size of the data directory without the reserve's file",
    "disk_room_bytes": "bytes that tenants may still write",
    "disk_budget_bytes": "disk_bytes_max, or the used and the writable bytes",
}


def _overload(text: "_Text", server: Services) -> Iterator[Metric]:
    admission, slow = server.runs.admission, server.slow
    yield text.counter("runs_refused", "runs that were not admitted, by reason",
                       [({"reason": r}, admission.refused[r]) for r in REASONS])  # fmt: skip
    cut = {"body": slow.uploads.cut, "reader": slow.readers.cut}
    yield text.counter("slow_clients", "slow clients that were cut off, by kind",
                       [({"kind": kind}, n) for kind, n in cut.items()])  # fmt: skip
    connections = server.connections.statistics()
    for key, words in (("closed", "closed to make room for others"),
                       ("refused", "refused to addresses that show no key")):  # fmt: skip
        name = f"connections_{key}"
        yield text.counter(name, f"connections that were {words}", connections[name])
    yield text.gauge("connections", "open connections", connections["connections"])
    for key, value in server.store.disk.statistics().items():
        yield text.gauge(key, _DISK[key], value)
    free = admission.memory.left()
    if free is not None:
        yield text.gauge("memory_free_bytes", "free memory of machine and cgroup", free)


def _egress(text: "_Text", egress: EgressMetrics) -> Iterator[Metric]:
    failed = {**{(kind, "EIO"): 0 for kind in KINDS}, **egress.failed}
    yield text.counter("outside_calls", "egress calls, by kind",
                       [({"kind": kind}, egress.made[kind]) for kind in KINDS])  # fmt: skip
    yield text.counter(
        "outside_calls_failed", "egress calls that failed, by errno",
        [({"kind": kind, "errno": errno}, count)
         for (kind, errno), count in sorted(failed.items())],
    )  # fmt: skip
    yield text.counter("tool_errors", "tool answers that report an error", egress.tool_errors)


class _Text:
    """Makes the library's metric families; all samples name the model, as vLLM's do."""

    def __init__(self, model: str) -> None:
        self._common = {"model_name": model} if model else {}

    def gauge(self, name: str, words: str, samples: _Samples | float) -> Metric:
        return self._fill(GaugeMetricFamily(_PREFIX + name, words), "", samples)

    def counter(self, name: str, words: str, samples: _Samples | float) -> Metric:
        return self._fill(CounterMetricFamily(_PREFIX + name, words), "_total", samples)

    def histogram(self, name: str, words: str, view: dict[str, Any]) -> Metric:
        family = HistogramMetricFamily(_PREFIX + name, words, labels=list(self._common))
        buckets, total = [], 0
        for bound, count in zip([*view["bounds"], "+Inf"], view["counts"], strict=True):
            total += count
            buckets.append((str(bound), total))
        family.add_metric(list(self._common.values()), buckets, view["sum"])
        return family

    def _fill(self, family: Metric, suffix: str, samples: _Samples | float) -> Metric:
        for labels, value in [({}, samples)] if isinstance(samples, int | float) else samples:
            family.add_sample(family.name + suffix, {**self._common, **labels}, float(value))
        return family
