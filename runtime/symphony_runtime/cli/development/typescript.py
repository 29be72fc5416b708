"""TypeScript to JavaScript: types become blanks, so that lines and columns stay (`amaro`)."""

import subprocess
from pathlib import Path

_SECONDS_MAX = 60
# The package is taken from the source's folder, or from the project's, where the command runs. It
# is not looked for further up, as Node.js does: others may write there, as in /tmp.
_STRIP = """
const fs = require("fs");
const folders = [process.argv[1], process.cwd()];
const places = folders.map((each) => require("path").join(each, "node_modules", "amaro"));
const found = places.find((each) => fs.existsSync(each));
if (!found) process.exit(3);
const text = fs.readFileSync(0, "utf8");
try {
  process.stdout.write(require(found).transformSync(text, { mode: "strip-only" }).code);
} catch (error) {
  process.stderr.write(String((error && error.message) || error));
  process.exit(1);
}
"""
_NO_PACKAGE = 3


class TypeScriptError(Exception):
    """A source cannot be stripped; says what to do."""


def strip_types(path: Path) -> bytes:
    """Return a TypeScript file as JavaScript; OSError, TypeScriptError."""
    command = ["node", "-e", _STRIP, str(path.resolve().parent)]
    source = path.read_bytes()
    try:
        done = subprocess.run(  # noqa: S603 - ours, with the user's Node.js
            command, input=source, capture_output=True, timeout=_SECONDS_MAX, check=False
        )
    except FileNotFoundError:
        raise TypeScriptError("TypeScript needs Node.js, which is not installed") from None
    except subprocess.TimeoutExpired:
        raise TypeScriptError(f"{path}: Node.js took more than {_SECONDS_MAX} s") from None
    if done.returncode == _NO_PACKAGE:
        raise TypeScriptError("TypeScript needs the package amaro: run `npm install amaro`")
    if done.returncode != 0:
        raise TypeScriptError(f"{path}:\n{done.stderr.decode(errors='replace').strip()}")
    return done.stdout
