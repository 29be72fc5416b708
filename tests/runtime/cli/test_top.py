"""`symphony top`: rates from two samples, and the command against a real server with either key."""

import json
import os
from typing import Any

from rich.console import Console
from symphony.client.views import Role
from symphony_runtime.cli.top import Sample, draw, make_snapshot

from tests.e2e import programs as guests
from tests.support.server.server import SYMPHONY, RunningServer
from tests.support.server.terminal import on_terminal

ROLE: Role = {"role": "kernel", "pid": 7, "ready": True}


def sample(at: float, tokens: float, **more: float) -> Sample:
    series = {("generation_tokens_total", frozenset({("tenant", "acme")})): tokens}
    series |= {(name, frozenset({("model_name", "m")})): value for name, value in more.items()}
    return Sample(at, True, [ROLE], series, None)


def text_of(snapshot: dict[str, Any]) -> str:
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    with console.file:
        console.print(draw(snapshot, "http://here"))
        return console.export_text()


def test_top_rates_are_differences_and_never_negative_after_a_restart() -> None:
    before = sample(10.0, 100.0, steps_total=10, step_rows_total=40)
    now = sample(12.0, 300.0, steps_total=20, step_rows_total=80, kv_pages=64, kv_pages_free=16)
    snapshot = make_snapshot(before, now)
    assert snapshot["rates"]["generation_tokens_per_second"] == 100.0
    assert snapshot["rates"]["mean_batch"] == 4.0
    assert snapshot["rates"]["device_busy_share"] is None
    assert snapshot["model"] == "m"
    assert snapshot["tenants"][0]["generation_tokens_per_second"] == 100.0
    assert make_snapshot(now, before)["rates"]["generation_tokens_per_second"] == 0.0
    shown = text_of(snapshot)
    assert "tokens/s 100.0" in shown
    assert "pages 48 of 64" in shown
    assert "host -" in shown


def test_top_shows_pages_by_tier() -> None:
    before = sample(1.0, 0.0, kv_pages_saved_total=0)
    more = {"kv_pages_on_host": 3, "kv_pages_on_disk": 4, "kv_pages_tokens_only": 5}
    now = sample(2.0, 0.0, kv_pages_saved_total=7, kv_durable_bytes=2_500_000, **more)
    shown = text_of(make_snapshot(before, now))
    assert "host 3   disk 4   tokens only 5   moved/s out 7" in shown
    assert "durable 2.5 MB" in shown


def test_top_shows_a_tenant_by_its_name() -> None:
    shown = text_of(make_snapshot(sample(1.0, 0.0), sample(2.0, 100.0)))
    assert "acme" in shown


def test_top_shows_names_as_plain_text_and_cuts_a_long_list() -> None:
    run = {"id": "run_x", "program_name": "[red]p", "program": "", "created_ms": 0, "held": None}
    snapshot = make_snapshot(sample(1.0, 0.0), sample(2.0, 0.0)) | {"runs": [run] * 25}
    shown = text_of(snapshot)
    assert "[red]p" in shown
    assert shown.count("run_x") == 20
    assert "and 5 more" in shown


def test_top_prints_one_snapshot_as_json_with_either_key(server: RunningServer) -> None:
    admin = (server.data_dir / "admin.key").read_text().strip()
    hang = server.data_dir / "hang.wasm"
    hang.write_bytes(guests.HANG_WASM)
    started = server.symphony("run", str(hang), "--detach")
    for key in (None, admin):
        done = server.symphony("top", "--json", environment={"SYMPHONY_KEY": key} if key else {})
        assert done.returncode == 0, done.stderr
        snapshot = json.loads(done.stdout)
        assert snapshot["ready"]
        assert [role["role"] for role in snapshot["roles"]] == ["gateway", "kernel", "worker-0"]
        assert snapshot["now"]["runs_live"] >= 1
        if key is None:
            assert snapshot["tenants"] == []
            mine = [r for r in snapshot["runs"] if r["id"] == started.stdout.strip()]
            assert mine[0]["held"] == {"tokens": 0, "kv_pages": 0, "instances": 1}
        else:
            assert snapshot["runs"] is None
            assert snapshot["tenants"][0]["tenant"] == "default"
            assert snapshot["roles"][0]["resident_bytes"] > 1 << 20
    refused = server.symphony("top", environment={"SYMPHONY_KEY": "sym_no_key"})
    assert refused.returncode == 1
    assert "this key is not valid" in refused.stderr
    assert server.symphony("cancel", started.stdout.strip()).returncode == 0


def test_top_on_a_terminal_refreshes_until_it_is_interrupted(server: RunningServer) -> None:
    environment = {**server.environment, "TERM": "xterm", "COLUMNS": "120"}
    code, shown = on_terminal(
        [*SYMPHONY, "top"], environment, lambda shown: shown.count(b"tokens/s") >= 2
    )
    assert shown.count(b"tokens/s") >= 2
    assert code == 130
