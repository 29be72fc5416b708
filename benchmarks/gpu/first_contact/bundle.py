"""What a GPU machine without a network lacks: wheels and compiled kernels, in one folder.

    gather     with a network: wheels into BUNDLE/wheels
    install    on the GPU machine: wheels into a folder of their own, compiled kernels below it
    pack, split    there: compiled kernels in pieces that fit what may be brought back

The machine is expected to have Python 3.12 and torch with CUDA, triton, nvcc and transformers. Its
own packages are kept: FlashInfer's dependencies would bring another torch.
"""

import subprocess
import sys
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

BUNDLE_BYTES_MAX = 64 << 20  # what may be taken along
PIECE_BYTES = 15 << 20  # of a file that is brought back
PIECES = "kernels.tgz"
# The kernel's own, and what `import flashinfer` needs beside what the machine has.
KERNELS = ("mypy_extensions", "flashinfer-python", "apache-tvm-ffi")
# What the server imports, with dependencies. In this order they are left out for lack of room.
SERVER = ("mcp", "cryptography", "uvloop", "llguidance", "wasmtime", "jinja2", "prometheus_client",
          "rich")  # fmt: skip
_GLIBC = (17, 24, 27, 28, 31, 34, 35)  # wheels say which they need at least; pip wants all of them


def pinned(names: Iterable[str], constraints: str) -> list[str]:
    """Return `name==version` of packages, as the text of constraints.txt has them.

    Raises ValueError: it has no version of one.
    """
    names, known = list(names), {}
    for line in constraints.splitlines():
        name, equals, version = line.strip().partition("==")
        if equals:
            known[_plain(name)] = version
    lacking = [name for name in names if _plain(name) not in known]
    if lacking:
        raise ValueError(f"constraints.txt has no version of {', '.join(lacking)}")
    return [f"{name}=={known[_plain(name)]}" for name in names]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def download_command(
    packages: Sequence[str], folder: Path, python: str, constraints: Path | None
) -> list[str]:
    """Return the command that downloads wheels; without `constraints` no dependencies."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC] + ["manylinux2014_x86_64"]
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    words += ["--python-version", python, "--implementation", "cp"]
    for platform in platforms:
        words += ["--platform", platform]
    words += ["--dest", str(folder)]
    words += ["--no-deps"] if constraints is None else ["--constraint", str(constraints)]
    return [*words, *packages]


def gather(bundle: Path, constraints: Path, python: str = "3.12") -> list[str]:
    """Download wheels into a bundle; return what was left out, in words.

    Raises CalledProcessError: pip cannot download FlashInfer.
    """
    wheels = bundle / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    text = constraints.read_text(encoding="utf-8")
    subprocess.run(download_command(pinned(KERNELS, text), wheels, python, None), check=True)
    left_out = []
    for package in pinned(reversed(SERVER), text):
        before = set(wheels.iterdir())
        result = subprocess.run(download_command([package], wheels, python, constraints))
        if result.returncode:
            left_out.append(f"{package}: pip ended with {result.returncode}")
        elif size_of(bundle) > BUNDLE_BYTES_MAX:
            for path in set(wheels.iterdir()) - before:
                path.unlink()
            left_out.append(f"{package}: no room in {BUNDLE_BYTES_MAX >> 20} MiB")
    return left_out


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def install(bundle: Path, site: Path) -> list[str]:
    """Install a bundle's wheels into `site`, and compiled kernels if it has some.

    Returns what was done, in words. Raises CalledProcessError.
    """
    wheels = sorted(str(path) for path in (bundle / "wheels").glob("*.whl"))
    done = []
    if not (site / "flashinfer").exists():
        words = ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--quiet"]
        command = [sys.executable, "-m", "pip", "install", *words, "--target", str(site), *wheels]
        subprocess.run(command, check=True)
        done.append(f"{len(wheels)} wheels")
    if list(bundle.glob(f"{PIECES}.*")):
        done.append(f"compiled kernels: {', '.join(unpack(bundle, site))}")
    return done


def pack(libraries: Iterable[Path], out: Path) -> None:
    """Pack compiled modules, each NAME/NAME.so, as FlashInfer looks for ready ones.

    One that lies at flashinfer/data/aot/NAME/NAME.so is loaded without ninja and nvcc.
    """
    with tarfile.open(out, "w:gz", compresslevel=6) as archive:
        for library in libraries:
            archive.add(library, f"aot/{library.stem}/{library.name}")


def split(archive: Path, folder: Path, piece_bytes: int = PIECE_BYTES) -> list[Path]:
    """Write an archive in pieces; return their paths, in order."""
    pieces: list[Path] = []
    with archive.open("rb") as file:
        while piece := file.read(piece_bytes):
            path = folder / f"{PIECES}.{len(pieces):02d}"
            path.write_bytes(piece)
            pieces.append(path)
    return pieces


def unpack(bundle: Path, site: Path) -> list[str]:
    """Put the compiled modules of a bundle's pieces where FlashInfer finds them; return names."""
    whole = site / PIECES
    whole.write_bytes(b"".join(path.read_bytes() for path in sorted(bundle.glob(f"{PIECES}.*"))))
    with tarfile.open(whole) as archive:
        archive.extractall(site / "flashinfer" / "data", filter="data")
        names = [Path(name).stem for name in archive.getnames()]
    whole.unlink()
    return names
