"""`symphony top`: the load of a server, once a second.

    /readyz, /metrics, /v1/runs?live=1  ->  Sample  ->  two of them: snapshot  ->  tables

Rates are differences of two samples. A tenant's key shows its own runs, and the server's metrics if
they tell nothing about other tenants. The admin key shows every tenant, and no single runs.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from symphony import AsyncClient, ClientError, ServerError
from symphony.client.views import Role, Run

from symphony_runtime.cli.output import print_json

JsonObject = dict[str, Any]
_PREFIX = "symphony:"
_SECONDS = 1.0
_ROWS_MAX = 20  # of runs or tenants on a terminal
_Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Sample:
    """The server's answers at one moment (`at`: seconds of a monotonic clock)."""

    at: float
    ready: bool
    roles: list[Role]
    series: dict[tuple[str, _Labels], float]
    runs: list[Run] | None  # None with the admin key

    def sum(self, name: str, **labels: str) -> float | None:
        """Return the sum of the series with a name and at least these labels, None without any."""
        found = [
            value
            for (name_, labels_), value in self.series.items()
            if name_ == name and labels.items() <= dict(labels_).items()
        ]
        return sum(found) if found else None

    def values(self, label: str) -> list[str]:
        """Return all values of a label."""
        return sorted({dict(labels)[label] for _, labels in self.series if label in dict(labels)})


async def take_sample(client: AsyncClient) -> Sample:
    """Ask the server. ClientError: it does not answer, or refuses the key."""
    ready, roles = await client.ready()
    text = await client.metrics()
    series = {
        (sample.name.removeprefix(_PREFIX), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return Sample(time.monotonic(), ready, roles, series, await _runs(client))


async def _runs(client: AsyncClient) -> list[Run] | None:
    try:
        return await client.runs.live()
    except ServerError as error:
        if error.status in (401, 503):  # the admin key, or no kernel to ask
            return None if error.status == 401 else []
        raise


def make_snapshot(before: Sample, now: Sample) -> JsonObject:
    """Return the output of `--json`: gauges of `now`, and rates since `before`."""
    seconds = max(now.at - before.at, 1e-9)

    def rate(name: str, **labels: str) -> float | None:
        new = now.sum(name, **labels)
        old = before.sum(name, **labels)
        # A new series started at zero; one that fell has restarted.
        return None if new is None else round(max(new - (old or 0.0), 0.0) / seconds, 3)

    steps = rate("steps_total")
    rows = rate("step_rows_total")
    return {
        "ready": now.ready,
        "model": next(iter(now.values("model_name")), None),
        "roles": [_role(role, now, rate) for role in now.roles],
        "now": {name: now.sum(name) for name in _NOW},
        "rates": {
            **{key: rate(name) for key, name in _RATES.items()},
            "mean_batch": round(rows / steps, 2) if steps and rows is not None else None,
        },
        "tenants": [_tenant(name, now, rate) for name in now.values("tenant")],
        "runs": now.runs,
    }


_NOW = (
    "runs_live", "num_requests_running", "num_requests_waiting", "instances", "preds_waiting",
    "preds_waiting_for_pages", "kv_cache_usage_perc", "kv_pages", "kv_pages_free",
    "kv_pages_shared", "prefix_cache_pages", "kv_pages_on_host", "kv_pages_on_disk",
    "kv_pages_tokens_only", "kv_durable_bytes",
)  # fmt: skip
_RATES = {
    "generation_tokens_per_second": "generation_tokens_total",
    "prompt_tokens_per_second": "prompt_tokens_total",
    "preds_per_second": "preds_total",
    "steps_per_second": "steps_total",
    "kv_pages_saved_per_second": "kv_pages_saved_total",
    "kv_pages_loaded_per_second": "kv_pages_loaded_total",
    "kv_pages_dropped_per_second": "kv_pages_dropped_total",
    "device_busy_share": "device_busy_seconds_total",
    "runs_ended_per_second": "request_success_total",
}


def _role(role: Role, now: Sample, rate: Any) -> JsonObject:
    name = role["role"]
    return {
        **role,
        "cpu_share": rate("role_cpu_seconds_total", role=name),
        "resident_bytes": now.sum("role_resident_memory_bytes", role=name),
    }


def _tenant(name: str, now: Sample, rate: Any) -> JsonObject:
    return {
        "tenant": name,
        "runs_live": now.sum("runs_live", tenant=name),
        "runs_held_up": now.sum("runs_held_up", tenant=name),
        "kv_pages": now.sum("kv_pages_held", tenant=name),
        "generation_tokens_per_second": rate("generation_tokens_total", tenant=name),
        "prompt_tokens_per_second": rate("prompt_tokens_total", tenant=name),
    }


# --- The screen ----------------------------------------------------------------------------------
async def show(client: AsyncClient, *, as_json: bool) -> None:
    """Print one snapshot, or one a second on a terminal until Ctrl-C.

    Raises ClientError: the server does not answer at first, or refuses the key.
    """
    before = await take_sample(client)
    await asyncio.sleep(_SECONDS)
    now = await take_sample(client)
    snapshot = make_snapshot(before, now)
    console = Console()
    if as_json:
        print_json(snapshot)
    elif not console.is_terminal:
        console.print(draw(snapshot, client.url))
    else:
        await _keep_showing(client, console, now, snapshot)


async def _keep_showing(
    client: AsyncClient, console: Console, before: Sample, snapshot: JsonObject
) -> None:
    with Live(draw(snapshot, client.url), console=console, screen=True) as live:
        while True:
            await asyncio.sleep(_SECONDS)
            try:
                now = await take_sample(client)
            except ClientError as error:
                live.update(Text(f"{client.url}: {error}", style="red"), refresh=True)
                continue
            live.update(draw(make_snapshot(before, now), client.url), refresh=True)
            before = now


def draw(snapshot: JsonObject, url: str) -> Group:
    state = "ready" if snapshot["ready"] else "not ready"
    head = Text(f"{url}  {snapshot['model'] or ''}  {state}", style="bold")
    parts: list[Text | Table] = [head, _roles_table(snapshot["roles"]), _counters(snapshot)]
    if snapshot["tenants"]:
        rows = sorted(snapshot["tenants"], key=lambda tenant: -(tenant["runs_live"] or 0))
        parts.append(_table(_TENANT_COLUMNS, rows))
    if snapshot["runs"] is not None:
        parts.append(_table(_RUN_COLUMNS, [_run_row(run) for run in snapshot["runs"]]))
    return Group(*parts)


def _roles_table(roles: list[JsonObject]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("ROLE", "PID", "CPU", "MEMORY", ""):
        table.add_column(heading, justify="right" if heading in ("CPU", "MEMORY") else "left")
    for role in roles:
        progress = role.get("progress")
        state = "ready" if role["ready"] else "absent"
        if progress is not None:
            state = f"{progress['what']}, {int(100 * progress['share'])} %"
        memory = role["resident_bytes"]
        table.add_row(
            role["role"],
            str(role["pid"] or "-"),
            _percent(role["cpu_share"]),
            f"{memory / (1 << 20):,.0f} MB" if memory else "-",
            state,
        )
    return table


def _counters(snapshot: JsonObject) -> Text:
    now, rates = snapshot["now"], snapshot["rates"]
    pages, free = now["kv_pages"], now["kv_pages_free"]
    held = f"{pages - free:,.0f} of {pages:,.0f}" if pages else "-"
    lines = (
        f"runs {_number(now['runs_live'])}   computing {_number(now['num_requests_running'])}   "
        f"waiting {_number(now['num_requests_waiting'])}   "
        f"for pages {_number(now['preds_waiting_for_pages'])}   "
        f"ended/s {_number(rates['runs_ended_per_second'], 1)}",
        f"tokens/s {_number(rates['generation_tokens_per_second'], 1)}   "
        f"prompt/s {_number(rates['prompt_tokens_per_second'], 1)}   "
        f"preds/s {_number(rates['preds_per_second'], 1)}   "
        f"batch {_number(rates['mean_batch'], 1)}   device {_percent(rates['device_busy_share'])}",
        f"pages {held} ({_percent(now['kv_cache_usage_perc'])})   "
        f"shared {_number(now['kv_pages_shared'])}   "
        f"prefixes {_number(now['prefix_cache_pages'])}",
        f"elsewhere: host {_number(now['kv_pages_on_host'])}   "
        f"disk {_number(now['kv_pages_on_disk'])}   "
        f"tokens only {_number(now['kv_pages_tokens_only'])}   "
        f"moved/s out {_number(rates['kv_pages_saved_per_second'])}   "
        f"in {_number(rates['kv_pages_loaded_per_second'])}   "
        f"dropped/s {_number(rates['kv_pages_dropped_per_second'])}   "
        f"durable {_megabytes(now['kv_durable_bytes'])}",
    )
    return Text("\n" + "\n".join(lines) + "\n")


_TENANT_COLUMNS = {
    "TENANT": "tenant", "RUNS": "runs_live", "PAGES": "kv_pages",
    "TOKENS/S": "generation_tokens_per_second", "PROMPT/S": "prompt_tokens_per_second",
    "HELD UP": "runs_held_up",
}  # fmt: skip
_RUN_COLUMNS = {
    "RUN": "id", "PROGRAM": "program", "AGE": "age", "TOKENS": "tokens", "PAGES": "kv_pages",
    "INSTANCES": "instances", "WAITS FOR": "waits_for",
}  # fmt: skip


def _run_row(run: JsonObject) -> JsonObject:
    age = time.time() - run["created_ms"] / 1000
    return {
        "id": run["id"],
        "program": run["program_name"] or run["program"][:19],
        "age": f"{max(age, 0.0):,.0f} s",
        **(run["held"] or {}),
        "waits_for": run.get("waits_for") or "",
    }


def _table(columns: dict[str, str], rows: list[JsonObject]) -> Table:
    caption = f"and {len(rows) - _ROWS_MAX} more" if len(rows) > _ROWS_MAX else None
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), caption=caption)
    for number, heading in enumerate(columns):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for row in rows[:_ROWS_MAX]:
        # As Text: a name may look like the library's markup.
        cells = (row.get(key) for key in columns.values())
        table.add_row(*(Text(c if isinstance(c, str) else _number(c)) for c in cells))
    return table


def _number(value: object, digits: int = 0) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else "-"


def _megabytes(size: float | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.1f} MB"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"
