"""What a GPU machine is asked, small and on the CPU: all of its logic but the device."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import machine
from benchmarks.gpu.__main__ import Bench, main, parse
from benchmarks.gpu.machine import Budget, UnfitError, find_device, how_to_bring, missing
from benchmarks.gpu.model import Model
from benchmarks.gpu.report import Finding, Report
from benchmarks.gpu.speed import busy_seconds


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """One call with the parts that need no server, and what it left."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("gpu")
    code = main([
        "--device", "cpu", "--parts", "parity,decode,prefill", "--dtype", "fp32", "--strict",
        "--out", str(out),
    ])  # fmt: skip
    return code, out


def test_gpu_small_call_finds_nothing_wrong(done: tuple[int, Path]) -> None:
    code, out = done
    whole = json.loads((out / "gpu.json").read_text())
    findings = whole["findings"]
    assert [f["case"] for f in findings if f["part"] == "parity"] == [
        "ragged batch", "trees", "shared prefix", "through the host", "greedy, transformers",
    ]  # fmt: skip
    assert all(f["ok"] for f in findings if f["part"] == "parity"), findings
    assert [f["case"] for f in findings if f["part"] == "decode"] == ["1 rows", "4 rows"]
    assert all(f["figures"]["tokens/s"] > 0 for f in findings if f["part"] == "decode")
    assert [f["case"] for f in findings if f["part"] == "prefill"] == ["2 x 64"]
    [kernels] = [f for f in findings if f["part"] == "kernels"]
    assert kernels["figures"] == {"FlashInfer": "False", "graphs": 0}
    assert kernels["ok"] is None, "a CPU has neither"
    assert whole["left_out"] == []
    assert code == 0
    assert "| tiny | ragged batch |" in (out / "gpu.md").read_text()


def test_gpu_timelines_have_chromes_format(done: tuple[int, Path]) -> None:
    _, out = done
    for rows in (1, 4):
        trace = json.loads(gzip.decompress((out / f"timeline-tiny-{rows}.json.gz").read_bytes()))
        assert trace["traceEvents"]
        assert busy_seconds(trace) == (0.0, 0.0)  # a CPU has no kernels of a GPU


def test_gpu_busy_time_covers_overlapping_kernels() -> None:
    def event(begin: float, duration: float, cat: str = "kernel") -> dict[str, object]:
        return {"ph": "X", "cat": cat, "ts": begin, "dur": duration}

    events = [
        event(100, 10), event(105, 20), event(106, 2), event(200, 50, "gpu_memcpy"),
        event(0, 500, "cpu_op"), event(300, 0, "kernel"),
    ]  # fmt: skip
    busy, span = busy_seconds({"traceEvents": events})
    assert (busy, span) == pytest.approx((75e-6, 200e-6))


def test_gpu_wrong_figure_is_in_the_table_and_the_exit_code() -> None:
    report = Report({"device": "one"})
    report.add(Finding("parity", "8b", "trees", {"error": 0.5}, ok=False))
    report.leave_out("server 8b", "no time")
    assert [finding.case for finding in report.wrong] == ["trees"]
    assert "| 8b | trees | 0.5 | NO |" in report.markdown()
    assert "- server 8b: no time" in report.markdown()


def test_gpu_call_that_is_ended_keeps_what_it_found(tmp_path: Path) -> None:
    class Ended(Bench):
        def _part(self, part: str, model: Model) -> None:
            if part == "prefill":
                raise KeyboardInterrupt
            self.report.add(Finding(part, model.name, "one", {"figure": 1}))

    options = parse(["--device", "cpu", "--parts", "decode,prefill", "--out", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        Ended(options).run()
    findings = json.loads((tmp_path / "gpu.json").read_text())["findings"]
    assert [each["part"] for each in findings] == ["decode"]


def test_gpu_call_without_a_gpu_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnfitError, match="--device cpu"):
        find_device("cuda")
    assert main(["--out", str(tmp_path / "nothing")]) == 2
    assert "no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_gpu_call_names_what_is_missing_and_how_to_get_it() -> None:
    assert missing({"no_such_module_here": "such", "torch": "torch"}) == ["such"]
    words = how_to_bring(["wasmtime", "rich"])
    assert "not installed here: wasmtime rich." in words
    assert "benchmarks.gpu.first_contact gather" in words
    assert set(machine.SERVER_PACKAGES) >= {"wasmtime", "uvloop", "llguidance", "mcp"}
    assert set(machine.KERNEL_PACKAGES) == {"flashinfer", "tvm_ffi"}, "each needs the other"


def test_gpu_options_are_checked_and_small_on_a_cpu() -> None:
    assert parse(["--device", "cpu"]).shapes == ["tiny"]
    assert parse([]).rows == [1, 16, 64, 256]
    with pytest.raises(SystemExit):
        parse(["--parts", "parity,nonsense"])
    assert Budget(5).left() <= 5
