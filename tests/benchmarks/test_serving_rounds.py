"""The serving benchmark against real servers: from their start to the tables."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.serving import plot, processes, report
from benchmarks.serving.floor import Rates, Sizes, floor
from benchmarks.serving.report import Findings, find
from benchmarks.serving.rounds import Rounds
from benchmarks.serving.servers import Server, ServerError, Setting, start
from benchmarks.serving.workloads import Column, Prompts, Workload
from tests.support.requirements import need_module

WORKLOADS = [
    Workload("two", 16, 4, Column.WHOLE, streams=2, requests=4),
    Workload("open", 8, 2, Column.FIRST, requests=4, rate=50.0),
]
ABOUT = {"model": "random small", "dtype": "fp32", "threads": 1, "rounds": 2, "seed": 0}


def machine(_threads: int) -> dict[str, Any]:
    return {"read": {"1": 10e9}, "bf16": 50e9, "bf16_ceiling": 80e9}


def setting(folder: Path, model: Path) -> Setting:
    folder.mkdir(parents=True, exist_ok=True)
    return Setting(model, folder / "peers", folder, 1, 2, 64, "fp32")


async def measured(folder: Path, model: Path) -> tuple[Findings, Rounds, list[Server]]:
    servers = [await start("symphony", setting(folder / name, model)) for name in ("a", "b")]
    first, second = servers
    second.endpoint = replace(second.endpoint, name="texts", token_ids=False)
    try:
        rounds = Rounds(
            servers, WORKLOADS, Prompts(model), 1, seed=0, say=lambda _: None, measure=machine
        )
        for server in servers:
            await rounds.warm_up(server)
            server.pause()
        rounds.measure_rates()
        for turn in range(2):
            await rounds.round(turn)
            idle = first.cpu_seconds()
            await asyncio.sleep(0.2)
            assert first.cpu_seconds() == idle, "who is not driven is stopped"
    finally:
        for server in servers:
            server.stop()
    names = [server.endpoint.name for server in servers]
    found = find(names, WORKLOADS, rounds.measures, rounds.rates, Sizes.of(model, 4), 1)
    return found, rounds, servers


@pytest.mark.slow
def test_rounds_drive_servers_in_turn_and_report_the_floor(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", SHAPES["small"], "fp32")
    findings, rounds, servers = asyncio.run(measured(tmp_path, model))
    for server in servers:
        assert server.process is not None
        assert server.process.poll() == 0, "it was asked to end, and ended well"
        assert processes.tree(server.process.pid) == [server.process.pid]

    order = [(m.turn, m.workload, m.server) for m in rounds.measures]
    assert order[:2] == [(0, "two", "symphony"), (0, "two", "texts")]
    assert order[4:6] == [(1, "two", "texts"), (1, "two", "symphony")], "the order moves on"
    assert len(order) == 8
    assert len(rounds.rates) == 3

    two = findings.cell(WORKLOADS[0], "symphony")
    assert two.requests == 8
    assert len(two.rounds[Column.WHOLE]) == 2
    assert 0 < two.value(Column.WHOLE) < 1e5
    assert two.cpu_seconds is not None
    assert two.memory is not None
    assert two.memory > 1 << 24
    bound = floor(WORKLOADS[0], Sizes.of(model, 4), rounds.rates[0].of(1))
    assert bound is not None
    assert findings.floors["two"] == pytest.approx(bound)
    assert two.shares == pytest.approx([v / bound for v in two.rounds[Column.WHOLE]])
    higher = floor(WORKLOADS[0], Sizes.of(model, 4), Rates(10e9, 80e9))
    assert higher is not None
    assert two.ceiling_shares == pytest.approx([s * bound / higher for s in two.shares])
    assert findings.ratios["two"].best == "texts"
    assert findings.floors["open"] is None

    _check_written(tmp_path, findings, rounds, servers)


def _check_written(folder: Path, findings: Findings, rounds: Rounds, servers: list[Server]) -> None:
    document = report.as_json(findings, rounds.measures, rounds.rates, servers, ABOUT)
    path = report.write(folder, "serving-small", document)
    read = json.loads(path.read_text())
    assert read["summary"]["two"]["servers"]["symphony"]["requests"] == 8
    assert len(read["measures"]) == 8
    assert len(read["measures"][0]["requests"][0]["texts"]) <= 4
    tables = report.as_markdown(findings, ABOUT)
    assert "| symphony / best of the others |" in tables
    assert "10.0 GB/s read, 50 GFLOP/s of bf16 products (80 of registers alone" in tables
    rows = [line for line in tables.splitlines() if line.startswith("|")]
    assert all(line.count("|") in (4, 5) for line in rows)


def test_rounds_plot_is_drawn(tmp_path: Path) -> None:
    need_module("plot", "matplotlib")
    model = make_checkpoint(tmp_path / "model", SHAPES["small"])
    findings = _invented(Sizes.of(model))
    files = plot.draw(findings, "a title", tmp_path, "figure")
    assert [file.suffix for file in files] == [".svg", ".png"]
    drawn = files[0].read_text()
    assert "<svg" in drawn
    assert files[1].read_bytes().startswith(b"\x89PNG")


def _invented(sizes: Sizes) -> Findings:
    """Return findings of two servers without any server."""
    from benchmarks.serving.client import Request
    from benchmarks.serving.rounds import Measure, SeenRates

    measures = [
        Measure(
            0, place, name, workload.name,
            [Request(0.0, 0.0, 0.1, 0.1 + speed, [0.1, 0.1 + speed], workload.prompt, workload.new)]
            * workload.requests,
            0.1 + speed, 0.01, None, None, None,
        )
        for workload in WORKLOADS
        for place, (name, speed) in enumerate({"a": 0.1, "b": 0.2}.items())
    ]  # fmt: skip
    seen = [SeenRates(float(at), machine(1)) for at in range(2)]
    return find(["a", "b"], WORKLOADS, measures, seen, sizes, 1)


def test_rounds_with_a_missing_peer_name_its_install_command(tmp_path: Path) -> None:
    wanted = setting(tmp_path, tmp_path / "model")
    for name, script in (("llama.cpp", "llama_cpp.sh"), ("vllm", "vllm_cpu.sh")):
        with pytest.raises(ServerError, match=f"benchmarks/peers/{script} {tmp_path / 'peers'}"):
            asyncio.run(start(name, wanted))


@pytest.mark.slow
def test_rounds_with_a_server_that_cannot_start_show_its_output(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="symphony did not become ready"):
        asyncio.run(start("symphony", setting(tmp_path, tmp_path / "nothing")))
