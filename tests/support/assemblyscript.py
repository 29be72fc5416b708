"""Compiling AssemblyScript for tests."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SDK = ROOT / "guest_sdk" / "assemblyscript"


def compiled(source: str, target: Path, *options: str) -> bytes:
    """Compile a source below the SDK's folder into `target` and return the module."""
    compiler = SDK / "node_modules" / "assemblyscript" / "bin" / "asc.js"
    assert compiler.is_file(), "the AssemblyScript compiler is missing: make install"
    command = ["node", str(compiler), source, "--outFile", str(target), *options]
    done = subprocess.run(command, cwd=SDK, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target.read_bytes()
