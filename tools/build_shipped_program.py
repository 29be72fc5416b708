"""Compile the programs that ship with the server, and record what they were made of.

    python tools/build_shipped_program.py

The Wasm is committed, so that a server needs no Rust. `program/built.json` beside its source names
the compiler and the hashes of the source (the SDK's included) and of the result: a test compares
them, and so tells where a commit changed the one without the other.

The compiler is called without cargo, whose names for things depend on where the sources lie: so the
same source and compiler give the same bytes everywhere.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from symphony_runtime.cli.projects import ProjectError, find_rust_toolchain

ROOT = Path(__file__).resolve().parents[1]
GATEWAY = ROOT / "runtime" / "symphony_runtime" / "gateway"
SDK = ROOT / "guest_sdk" / "rust"
STACK_BYTES = 64 << 10  # a megabyte, as is usual, would be each request's


@dataclass(frozen=True)
class Shipped:
    """A program in `gateway/NAME/program`, whose Wasm is `gateway/NAME/NAME.wasm`."""

    name: str

    @property
    def program(self) -> Path:
        return GATEWAY / self.name / "program"

    @property
    def wasm(self) -> Path:
        return GATEWAY / self.name / f"{self.name}.wasm"

    @property
    def record(self) -> Path:
        return self.program / "built.json"

    def sources(self) -> list[Path]:
        """Return the files that the Wasm depends on, sorted; not what only native tests compile."""
        found = [*self.program.glob("src/**/*.rs"), *SDK.glob("src/**/*.rs")]
        found += [self.program / "Cargo.toml", self.program / "Cargo.lock", SDK / "Cargo.toml"]
        native = {"testing", "tests"}
        return sorted(path for path in found if not {path.stem, path.parent.name} & native)

    def source_hash(self) -> str:
        """Return one hash of all of them, with their names."""
        digest = hashlib.sha256()
        for path in self.sources():
            digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode())
            digest.update(path.read_bytes() + b"\0")
        return digest.hexdigest()

    def describe(self, wasm: bytes) -> dict[str, str]:
        """Return what is recorded of a build from the present source."""
        return {
            "compiler": compiler(),
            "source": self.source_hash(),
            "wasm": hashlib.sha256(wasm).hexdigest(),
        }

    def build(self, root: Path, wasm: Path) -> None:
        """Compile the program below a repository's root.

        Raises:
            ProjectError: there is no compiler, or it refuses the source.
        """
        common = ["--edition", "2021", "--target", "wasm32-unknown-unknown", "-C", "panic=abort"]
        with tempfile.TemporaryDirectory() as folder:
            sdk = Path(folder) / "libsymphony.rlib"
            library = ["--crate-name", "symphony", "--crate-type", "rlib",
                       "--cfg", 'feature="std"', "-C", "opt-level=3"]  # fmt: skip
            _compile(root, SDK / "src" / "lib.rs", sdk, [*common, *library])
            made = Path(folder) / self.wasm.name
            program = ["--crate-name", self.name, "--crate-type", "cdylib", "-C", "opt-level=2",
                       "-C", "lto", "-C", "codegen-units=1", "-C", "strip=symbols",
                       "-C", f"link-arg=-zstack-size={STACK_BYTES}",
                       "--extern", f"symphony={sdk}"]  # fmt: skip
            _compile(root, self.program / "src" / "lib.rs", made, [*common, *program])
            shutil.copyfile(made, wasm)


OPENAI = Shipped("openai")  # behind the OpenAI routes
ATTACHED = Shipped("attached")  # makes the system calls of attached programs
PROGRAMS = (OPENAI, ATTACHED)


def compiler() -> str:
    """Return the version of the compiler that would be used.

    Raises:
        ProjectError: there is none.
    """
    rustc = find_rust_toolchain().rustc
    asked = subprocess.run([rustc, "--version"], capture_output=True, text=True, check=True)  # noqa: S603 - the developer's own
    return asked.stdout.strip()


def _compile(root: Path, source: Path, target: Path, flags: list[str]) -> None:
    toolchain = find_rust_toolchain()
    # From the root, so that messages in the Wasm name files as the repository does.
    command = [toolchain.rustc, *flags, "-o", str(target), str(source.relative_to(ROOT))]
    done = subprocess.run(  # noqa: S603 - the developer's own compiler
        command, cwd=root, env=toolchain.environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ProjectError(done.stderr)


def main() -> int:
    for shipped in PROGRAMS:
        try:
            shipped.build(ROOT, shipped.wasm)
        except ProjectError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        described = shipped.describe(shipped.wasm.read_bytes())
        shipped.record.write_text(json.dumps(described, indent=2) + "\n")
        kilobytes = shipped.wasm.stat().st_size / 1024
        sys.stdout.write(f"   {shipped.wasm.name:24} {kilobytes:6.1f} KB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
