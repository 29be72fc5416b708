"""Everything that a GPU machine is asked, in one call: first whether it is right, then how fast.

    python -m benchmarks.gpu [--parts parity,decode,prefill,server,open] [--shapes 0.5b,1b,8b]
        [--seconds 540] [--out DIR]
    python -m benchmarks.gpu --device cpu --shapes tiny       # all of it, small, without a GPU

Weights are random and made on the device. A part for which no time is left is left out, and the
tables come last in any case; they, every finding and the timelines are in DIR. The exit code is 1
when something is not as it should be, 2 when the machine lacks what is needed.
"""

import argparse
import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from symphony_kernel.executor.cuda.network import CudaNetwork
from symphony_kernel.executor.torch_executor import TorchExecutor

from benchmarks.gpu import machine, open_loop, parity, peers, served, speed
from benchmarks.gpu.machine import Budget, UnfitError
from benchmarks.gpu.model import NAMES, Model, make_executor, make_model, pages_for
from benchmarks.gpu.report import Finding, Report, Value

PARTS = ("parity", "decode", "prefill", "server", "open")
# Before a part of a shape begins there must be so many seconds left; the first one of a call
# compiles FlashInfer's kernels, which takes minutes.
_WATCHED_STEPS = 8  # a timeline is 1 MB for each, and there may be little room to bring it back
_SECONDS = {"parity": 45, "decode": 40, "prefill": 20, "server": 120, "open": 150}


class Bench:
    """One call."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.report = Report()
        self.budget = Budget(options.seconds)
        self.place = machine.find_device(options.device)
        self.dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
        self.device = machine.measure(self.place)
        self.report.about = {
            "device": self.device.name,
            "torch": torch.__version__,
            "reads (GB/s)": round(self.device.read / 1e9),
            "copies, read and written (GB/s)": round(self.device.copied / 1e9),
            "bf16 products (TFLOP/s)": round(self.device.products / 1e12, 2),
            "dtype": options.dtype,
            "network": options.network,
        }

    def run(self) -> None:
        """Do all parts of all shapes."""
        for name in self.options.shapes:
            model = make_model(name, self.place, self.dtype)
            for part in self.options.parts:
                with self._room(f"{part} {name}", _SECONDS[part]) as there_is:
                    if there_is:
                        self._part(part, model)
                # A call that is ended early finds what there is.
                self.report.write(self.options.out)

    @contextmanager
    def _room(self, what: str, seconds: float) -> Iterator[bool]:
        """Say whether there is time; an error ends what it is about, and is told."""
        left = self.budget.left()
        if self.place.type == "cuda" and left < seconds:
            self.report.leave_out(what, f"{left:.0f} s are left, it may take {seconds:.0f}")
            yield False
            return
        try:
            yield True
        except Exception as error:  # the other parts' figures are worth having
            self.report.add(Finding(what.split()[0], what.split()[1], repr(error)[:300], {}, False))
            if self.options.strict:
                raise
        finally:
            gc.collect()
            if self.place.type == "cuda":
                torch.cuda.empty_cache()

    def _part(self, part: str, model: Model) -> None:
        parts: dict[str, Callable[[Model], None]] = {
            "parity": self._parity, "decode": self._decode, "prefill": self._prefill,
            "server": self._server, "open": self._open,
        }  # fmt: skip
        parts[part](model)

    @property
    def _calls_transformers(self) -> bool:
        lacking = machine.missing(machine.TRANSFORMERS_PACKAGES)
        if lacking == ["accelerate"] or not lacking:
            return True
        self.report.leave_out("transformers", machine.how_to_bring(lacking))
        return False

    def _parity(self, model: Model) -> None:
        tested = make_executor(model, self.options.network, parity.PAGES)
        plain = make_executor(model, "torch", parity.PAGES)
        try:
            for finding in parity.check(model, tested, plain):
                self.report.add(finding)
            if self._calls_transformers:
                peer = peers.make_peer(model)
                load = served.Load(4, 24, 24, model.config.vocab_size)
                self.report.add(peers.compare_greedy(model, tested, peer, load))
        finally:
            for executor in (tested, plain):
                asyncio.run(executor.close())

    def _decode(self, model: Model) -> None:
        options = self.options
        entries = options.context + 2 * options.steps
        pages = max(options.rows) * pages_for(entries)
        executor = make_executor(model, options.network, pages)
        self._note_kernels(model, executor)
        try:
            for rows in options.rows:
                self.report.add(
                    speed.measure_decode(
                        model, executor, self.device, rows,
                        context=options.context, steps=options.steps, repeats=options.repeats,
                    )
                )  # fmt: skip
            for rows in sorted({min(options.rows), max(r for r in options.rows if r <= 64)}):
                trace = options.out / f"timeline-{model.name}-{rows}.json"
                self.report.add(
                    speed.measure_idle(
                        model, executor, rows,
                        context=options.context, steps=min(options.steps, _WATCHED_STEPS),
                        trace=trace,
                    )
                )  # fmt: skip
        finally:
            asyncio.run(executor.close())

    def _note_kernels(self, model: Model, executor: TorchExecutor) -> None:
        """Add what computes: torch in FlashInfer's place would be slow for no visible reason."""
        self.report.add(kernels_used(model, executor))

    def _prefill(self, model: Model) -> None:
        rows, prompt = self.options.prefill
        executor = make_executor(model, self.options.network, rows * pages_for(prompt))
        try:
            self.report.add(
                speed.measure_prefill(
                    model, executor, self.device, rows, prompt, self.options.repeats
                )
            )
        finally:
            asyncio.run(executor.close())

    def _server(self, model: Model) -> None:
        options = self.options
        prompt, new = options.completion
        vocab = model.config.vocab_size
        loads = [served.Load(streams, prompt, new, vocab) for streams in options.streams]
        seconds = {"executor": served.alone(model, options.network, loads, options.repeats)}
        self._empty()
        lacking = machine.missing(machine.SERVER_PACKAGES)
        if lacking:
            self.report.leave_out("the whole server", machine.how_to_bring(lacking))
        else:
            seconds["server"] = served.serve(
                model, loads, options.repeats, options.room, options.serve.split()
            )
        if self._calls_transformers and self.budget.left() > _SECONDS["parity"]:
            try:
                peer = peers.make_peer(model)
                seconds["transformers"] = peers.batched(peer, loads, options.repeats)
            except Exception as error:  # another's: ours are worth having without
                self.report.leave_out("transformers' continuous batching", repr(error)[:300])
        for finding in served.compare(model, loads, seconds):
            self.report.add(finding)

    def _open(self, model: Model) -> None:
        options = self.options
        lacking = machine.missing(machine.SERVER_PACKAGES)
        if lacking:
            self.report.leave_out("the open loop", machine.how_to_bring(lacking))
            return
        prompt, new = options.completion
        streams = max(each for each in options.streams if each <= open_loop.STREAMS_MAX)
        load = served.Load(streams, prompt, new, model.config.vocab_size)
        seconds = open_loop.SECONDS if self.place.type == "cuda" else 2.0
        found = open_loop.measure(model, load, options.room, options.serve.split(), seconds)
        for finding in found:
            self.report.add(finding)

    def _empty(self) -> None:
        gc.collect()
        if self.place.type == "cuda":
            torch.cuda.empty_cache()  # the server's process needs it


def kernels_used(model: Model, executor: TorchExecutor) -> Finding:
    """Return whether FlashInfer and graphs compute; it is wrong on a GPU if they do not."""
    network = executor.network
    if not isinstance(network, CudaNetwork):
        return Finding("kernels", model.name, executor.computes, {})
    flashinfer, graphs = network.library is not None, network.graphs.sizes
    figures: dict[str, Value] = {"FlashInfer": str(flashinfer), "graphs": len(graphs)}
    on_gpu = model.tensors.device.type == "cuda"
    right = (flashinfer and bool(graphs)) if on_gpu else None
    return Finding("kernels", model.name, executor.computes, figures, right)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _chosen(known: dict[str, str] | tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options; those not given are small on a CPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", type=_chosen(PARTS), default=list(PARTS))
    parser.add_argument("--shapes", type=_chosen(NAMES), help=f"of {', '.join(NAMES)}")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--network", choices=("cuda", "torch"), default="cuda",
                        help="what is measured; torch is plain torch")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=540, help="for everything (540)")
    parser.add_argument("--rows", type=_numbers, help="decoding (1,16,64,256)")
    parser.add_argument("--context", type=int, help="entries that each row holds (1024)")
    parser.add_argument("--steps", type=int, help="of a measurement (64)")
    parser.add_argument("--prefill", type=_numbers, help="rows and tokens of each (8,2048)")
    parser.add_argument("--streams", type=_numbers, help="of the server (1,64,256)")
    parser.add_argument("--completion", type=_numbers, help="prompt and new tokens (128,128)")
    parser.add_argument("--repeats", type=int, help="the best of so many counts (3)")
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="more for symphony serve")
    parser.add_argument("--room", type=Path, help="a directory for the server's checkpoint")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--strict", action="store_true", help="end at the first error")
    options = parser.parse_args(arguments)
    small = options.device == "cpu"
    defaults = {
        "shapes": (["0.5b", "1b", "8b"], ["tiny"]), "rows": ([1, 16, 64, 256], [1, 4]),
        "context": (1024, 40), "steps": (64, 6), "prefill": ([8, 2048], [2, 64]),
        "streams": ([1, 64, 256], [1, 4]), "completion": ([128, 128], [16, 8]),
        "repeats": (3, 1),
    }  # fmt: skip
    for name, values in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, values[small])
    return options


def main(arguments: list[str]) -> int:
    """Do what the command line says."""
    options = parse(arguments)
    try:
        bench = Bench(options)
    except UnfitError as error:
        print(error, file=sys.stderr)
        return 2
    if options.network == "cuda" and options.device == "cuda":
        lacking = machine.missing(machine.KERNEL_PACKAGES)
        if lacking:
            bench.report.leave_out("FlashInfer (torch computes)", machine.how_to_bring(lacking))
    try:
        bench.run()
    finally:
        bench.report.write(options.out)
        print("\n" + bench.report.markdown())
    return 1 if bench.report.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
