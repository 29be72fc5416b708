"""A first contact with a GPU machine: one call a stage, each within ten minutes and 64 MiB.

    python -m benchmarks.gpu.first_contact gather                 # with a network: wheels
    python -m benchmarks.gpu.first_contact run kernels --out DIR  # there, then the other stages

Stages: kernels (compile all in one ninja beside the tests that need no FlashInfer, each kernel
alone, the other tests), parity, speed, server, open. After `kernels` copy its kernels.tgz.* into
the bundle: the next machine need not compile. Exit code 1: something failed or was left out.
"""

import argparse
import os
import sys
from pathlib import Path

from benchmarks.gpu.first_contact import bundle
from benchmarks.gpu.first_contact.stages import Command, Stage, fit

ROOT = Path(__file__).parents[3]
_TESTS = "tests/kernel/executor/cuda"
_NEEDS_FLASHINFER = "FlashInfer or graphs or bf16"
_ONLY_HERE = ("install", "build", "smoke", "run")


def pytest_words(python: str, chosen: str) -> list[str]:
    """Return the command of the tests on a GPU; the suite's limit is shorter than a compile."""
    options = ["-m", "gpu", "-o", "timeout=0", "-W", "default", "-p", "no:cacheprovider"]
    # conftest.py needs Hypothesis, which the machine may lack; these tests do not.
    return [python, "-m", "pytest", "--noconftest", *options, "-k", chosen, _TESTS]


def stages(options: argparse.Namespace) -> dict[str, Stage]:
    """Return all stages, for a bundle and a folder for results."""
    python, out = sys.executable, options.out
    me = [python, "-m", "benchmarks.gpu.first_contact"]

    def bench(parts: str, shapes: str, *more: str) -> list[list[Command]]:
        words = [python, "-m", "benchmarks.gpu", "--parts", parts, "--shapes", shapes]
        words += ["--seconds", "520", "--out", str(out / "results"), *more]
        return [[Command(parts.replace(",", "-"), words, most=550)]]

    kernels = [
        [Command("machine", ["nvidia-smi"], most=20, least=0)],
        [
            Command("build", [*me, "build", "--out", str(out)], most=420),
            Command("tests-torch", pytest_words(python, f"not ({_NEEDS_FLASHINFER})"), most=170),
        ],
        [Command("smoke", [*me, "smoke"], most=120)],
        [Command("tests-flashinfer", pytest_words(python, _NEEDS_FLASHINFER), most=150)],
    ]
    room = ["--room", "/dev/shm"]
    return {
        each.name: each
        for each in (
            Stage("kernels", kernels),
            Stage("parity", bench("parity", "8b,1b,0.5b")),
            Stage("speed", bench("decode,prefill", "8b,1b,0.5b")),
            Stage("server", bench("server", "8b", "--repeats", "2", *room)),
            Stage("open", bench("open", "8b", *room)),
        )
    }


def environment(site: Path) -> dict[str, str]:
    """Return the variables of all commands there."""
    places = [site, ROOT / "kernel", ROOT / "runtime", ROOT / "client", ROOT]
    return {
        "PYTHONPATH": ":".join(map(str, places)),
        "PYTHONUNBUFFERED": "1",
        "FLASHINFER_WORKSPACE_BASE": str(site),
        "FLASHINFER_USE_CUDA_NORM": "1",
        "MAX_JOBS": str(os.cpu_count() or 1),
    }


def run(options: argparse.Namespace) -> int:
    """Run one stage; return 1 if something failed or was left out."""
    os.chdir(ROOT)
    for words in bundle.install(options.bundle, options.site):
        print(f"installed {words}", flush=True)
    stage = stages(options)[options.stage]
    outcomes = stage.run(options.out, environment(options.site))
    left_out = fit(options.out)
    text = stage.report() + "".join(f"\nNot brought back: {what}\n" for what in left_out)
    (options.out / f"{stage.name}.md").write_text(text, encoding="utf-8")
    print(text, flush=True)
    return 0 if all(each.right for each in outcomes) and not left_out else 1


def build(options: argparse.Namespace) -> int:
    """Compile FlashInfer's modules and put them where they are found; pieces go to `out`."""
    from benchmarks.gpu.first_contact.prebuild import compile_all

    archive = options.site / "built.tgz"
    print(compile_all(archive), flush=True)
    bundle.split(archive, options.out)
    print("ready:", ", ".join(bundle.unpack(options.out, options.site)), flush=True)
    return 0


def gather(options: argparse.Namespace) -> int:
    """Download wheels; return 1 if some were left out."""
    left_out = bundle.gather(options.bundle, ROOT / "constraints.txt")
    print(f"{options.bundle}: {bundle.size_of(options.bundle) / 2**20:.1f} MiB")
    for what in left_out:
        print(f"left out: {what}")
    return 1 if left_out else 0


def install(options: argparse.Namespace) -> int:
    for words in bundle.install(options.bundle, options.site):
        print(f"installed {words}", flush=True)
    return 0


def smoke(options: argparse.Namespace) -> int:
    from benchmarks.gpu.first_contact.smoke import check_all

    return 1 if check_all(options.device) else 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("gather", *_ONLY_HERE))
    parser.add_argument(
        "stage", nargs="?", choices=("kernels", "parity", "speed", "server", "open")
    )
    parser.add_argument("--bundle", type=Path, default=ROOT / ".gpu")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "gpu-site")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="of smoke")
    options = parser.parse_args(arguments)
    if (options.action == "run") != (options.stage is not None):
        parser.error("run needs a stage, and nothing else takes one")
    for name in ("bundle", "site", "out"):
        setattr(options, name, getattr(options, name).absolute())
    return options


def main(arguments: list[str]) -> int:
    """Do what the command line says."""
    options = parse(arguments)
    actions = {"gather": gather, "install": install, "build": build, "smoke": smoke, "run": run}
    if options.action != "gather":
        options.site.mkdir(parents=True, exist_ok=True)
    return actions[options.action](options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
