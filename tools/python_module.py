"""Build the language module of Python from MicroPython's source, and record what it was made of.

    python -m tools.python_module

The Wasm is committed, so that a server needs no C compiler for Wasm. `guest_sdk/python/built.json`
names the tools and the hashes of the sources and of the result: a test compares them.

MicroPython is Debian's source package, whose hash is pinned, with the patch of
`guest_sdk/python/port`. The port there is compiled by Debian's clang against wasi-libc, with the
SDK in `guest_sdk/python/frozen` as bytecode in it. Then binaryen makes the linked module flat, and
two passes of ours (tools/wasm_passes) give the collector its roots and make exceptions of returns.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.wasm_passes.module import encode, read
from tools.wasm_passes.spill import spill
from tools.wasm_passes.unwind import unwind

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "guest_sdk" / "python"
PORT = FOLDER / "port"
RECORD = FOLDER / "built.json"
WASM = ROOT / "runtime" / "symphony_runtime" / "languages" / "python.wasm"
SUITE, PACKAGE, VERSION = "trixie", "micropython", "1.25.0+ds-1"
SOURCE = "micropython_1.25.0+ds.orig.tar.xz"
SOURCE_SHA256 = "7b25be99a502f070b2de81dafc08da7051d992325d6e67daa9045a918fffdbea"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
FEATURES = (
    "--enable-bulk-memory", "--enable-sign-ext", "--enable-nontrapping-float-to-int",
    "--enable-mutable-globals",
)  # fmt: skip
FLAT = (
    "-g", "--flatten", "--simplify-locals-nonesting", "--vacuum", "--coalesce-locals", "--vacuum",
)  # fmt: skip
NEEDED = ("clang", "wasm-ld", "wasm-opt", "make", "gcc", "patch", "apt-get")


def sources() -> list[Path]:
    """Return the files of this repository that the module depends on, sorted."""
    passes = (ROOT / "tools" / "wasm_passes").glob("*.py")
    own = [
        path for path in [*PORT.rglob("*"), *(FOLDER / "frozen").rglob("*.py")] if path.is_file()
    ]
    return sorted([*own, *passes, Path(__file__)])


def source_hash() -> str:
    """Return one hash of all of them, with their names."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode())
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def run(*command: str, where: Path | None = None) -> None:
    """Run a command; what it says is shown if it fails."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "0"}
    done = subprocess.run(  # noqa: S603 - the developer's own tools
        command, cwd=where, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def mirror() -> str:
    """Return the mirror of Debian that this machine uses."""
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    for path in files:
        if path.is_file():
            text = re.sub(r"(?m)^\s*#.*$", "", path.read_text(errors="replace"))
            found = re.search(r"\bhttps?://\S*/debian\b(?!-)/?", text)
            if found:
                return found[0]
    sys.exit("no mirror of Debian in /etc/apt: set one up, or build on Debian")


def fetch(folder: Path) -> Path:
    """Download MicroPython's source, check its hash and return the archive."""
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / "apt" / name).mkdir(parents=True)
    listed = folder / "apt" / "sources.list"
    listed.write_text(f"deb-src [signed-by={KEYRING}] {mirror()} {SUITE} main\n")
    options = [
        f"Dir::Etc::sourcelist={listed}", "Dir::Etc::sourceparts=/dev/null",
        f"Dir::State::lists={folder}/apt/lists", f"Dir::Cache={folder}/apt/cache",
    ]  # fmt: skip
    apt = ["apt-get", *(word for option in options for word in ("-o", option))]
    run(*apt, "update")
    run(*apt, "source", "--download-only", f"{PACKAGE}={VERSION}", where=folder)
    archive = folder / SOURCE
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SOURCE_SHA256:
        sys.exit(f"{SOURCE} has the hash {found}, not {SOURCE_SHA256}")
    return archive


def link(archive: Path, folder: Path) -> Path:
    """Compile and link the port; return the module, which no pass has seen."""
    run("tar", "xf", str(archive), where=folder)
    (top,) = folder.glob("micropython-*/")
    run("make", "-C", str(top / "mpy-cross"))
    run("patch", "-p1", "-i", str(PORT / "micropython.patch"), where=top)
    cross = top / "mpy-cross" / "build" / "mpy-cross"
    build = folder / "build"
    run("make", "-C", str(PORT), f"MICROPYTHON={top}", f"BUILD={build}", f"MPY_CROSS={cross}")
    return build / "python.wasm"


def finish(linked: Path, folder: Path) -> bytes:
    """Return the module after all passes."""
    flat, passed, made = (folder / f"{name}.wasm" for name in ("flat", "passed", "made"))
    run("wasm-opt", *FEATURES, str(linked), *FLAT, "-o", str(flat))
    data = flat.read_bytes()
    module = read(data)
    stores, checks = spill(module), unwind(module)
    sys.stdout.write(f"   {stores} stores for the collector, {checks} checks of the flag\n")
    passed.write_bytes(encode(data, module))
    run("wasm-opt", *FEATURES, str(passed), "-O2", "-o", str(made))
    return made.read_bytes()


def describe(wasm: bytes) -> dict[str, str]:
    """Return what is recorded of a build from the present sources."""
    versions = {}
    for tool in ("clang", "wasm-opt"):
        asked = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
        versions[tool] = asked.stdout.splitlines()[0]
    return {
        **versions,
        "micropython": f"{PACKAGE} {VERSION} sha256:{SOURCE_SHA256}",
        "source": source_hash(),
        "wasm": hashlib.sha256(wasm).hexdigest(),
    }


def main() -> int:
    missing = [tool for tool in NEEDED if shutil.which(tool) is None]
    if missing:
        sys.exit(
            f"{', '.join(missing)}: install clang, lld, wasi-libc, libclang-rt-14-dev-wasm32,"
            " binaryen, make, gcc, patch (Debian's names)"
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = Path(sys.argv[1]) if len(sys.argv) > 1 else fetch(folder)
        wasm = finish(link(archive, folder), folder)
    WASM.write_bytes(wasm)
    RECORD.write_text(json.dumps(describe(wasm), indent=2) + "\n")
    sys.stdout.write(f"   {WASM.name:24} {len(wasm) / 1024:6.1f} KB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
