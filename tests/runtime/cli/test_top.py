"""`symphony top`: rates from two samples, and the command against a real server with either key."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from typing import Any

from rich.console import Console
from symphony_runtime.cli.top import Sample, draw, make_snapshot

from tests.e2e import programs as guests
from tests.support.server.server import RunningServer

COMMAND = [sys.executable, "-m", "symphony_runtime.cli", "top"]
ROLE = {"role": "kernel", "pid": 7, "ready": True}


def sample(at: float, tokens: float, **more: float) -> Sample:
    series = {("generation_tokens_total", frozenset({("tenant", "acme")})): tokens}
    series |= {(name, frozenset({("model_name", "m")})): value for name, value in more.items()}
    return Sample(at, True, [ROLE], series, None)


def text_of(snapshot: dict[str, Any]) -> str:
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    with console.file:
        console.print(draw(snapshot, "http://here"))
        return console.export_text()


def test_rates_are_differences_and_what_began_anew_is_no_loss() -> None:
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


def test_pages_are_shown_by_where_they_are() -> None:
    before = sample(1.0, 0.0, kv_pages_saved_total=0)
    more = {"kv_pages_on_host": 3, "kv_pages_on_disk": 4, "kv_pages_tokens_only": 5}
    now = sample(2.0, 0.0, kv_pages_saved_total=7, kv_durable_bytes=2_500_000, **more)
    shown = text_of(make_snapshot(before, now))
    assert "host 3   disk 4   tokens only 5   moved/s out 7" in shown
    assert "durable 2.5 MB" in shown


def test_a_tenant_is_shown_by_its_name() -> None:
    shown = text_of(make_snapshot(sample(1.0, 0.0), sample(2.0, 100.0)))
    assert "acme" in shown


def test_a_name_is_no_markup_and_a_long_list_is_cut() -> None:
    run = {"id": "run_x", "program_name": "[red]p", "program": "", "created_ms": 0, "held": None}
    snapshot = make_snapshot(sample(1.0, 0.0), sample(2.0, 0.0)) | {"runs": [run] * 25}
    shown = text_of(snapshot)
    assert "[red]p" in shown
    assert shown.count("run_x") == 20
    assert "and 5 more" in shown


def test_one_snapshot_as_json_with_either_key(simulated_server: RunningServer) -> None:
    admin = (simulated_server.data_dir / "admin.key").read_text().strip()
    environment = simulated_server.environment
    hang = simulated_server.data_dir / "hang.wasm"
    hang.write_bytes(guests.HANG_WASM)
    run = [sys.executable, "-m", "symphony_runtime.cli", "run", str(hang), "--detach"]
    started = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    for key in (None, admin):
        given = {**environment, **({"SYMPHONY_KEY": key} if key else {})}
        done = subprocess.run(
            [*COMMAND, "--json"], env=given, capture_output=True, text=True, check=False
        )
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
    wrong = {**environment, "SYMPHONY_KEY": "sym_no_key"}
    refused = subprocess.run(COMMAND, env=wrong, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "this key is not valid" in refused.stderr
    cancel = [sys.executable, "-m", "symphony_runtime.cli", "cancel", started.stdout.strip()]
    subprocess.run(cancel, env=environment, check=True, capture_output=True)


def heed_interrupts() -> None:
    """A suite that runs in the background of a shell ignores them, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_terminal_shows_it_until_it_is_interrupted(simulated_server: RunningServer) -> None:
    screen, terminal = pty.openpty()
    environment = {**simulated_server.environment, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        COMMAND, stdin=terminal, stdout=terminal, stderr=terminal, env=environment,
        preexec_fn=heed_interrupts,
    ) as running:  # fmt: skip
        os.close(terminal)
        shown, until = b"", time.monotonic() + 30
        while shown.count(b"tokens/s") < 2 and time.monotonic() < until:
            shown += os.read(screen, 1 << 16)
        running.send_signal(signal.SIGINT)
        while True:
            try:
                if not os.read(screen, 1 << 16):
                    break
            except OSError:  # nobody holds the terminal any longer
                break
    os.close(screen)
    assert shown.count(b"tokens/s") == 2, shown
    assert running.returncode == 130
