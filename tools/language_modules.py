"""Build the language modules from their interpreters' sources, and record what they were made of.

    python tools/language_modules.py

The Wasm is committed, so that a server needs no C compiler for Wasm.
`guest_sdk/javascript/built.json` names the compiler and the hashes of the sources and of the
result: a test compares them.

JavaScript: QuickJS from the sdist of `quickjs` on PyPI, compiled by Debian's clang with wasi-libc
and the files of `guest_sdk/javascript`, as one translation unit. The linked module is then set up:
it runs here until its runtime is there, and its memory becomes the data of the committed module.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from symphony_runtime.compiler.module_outline import read_sections
from wasmtime import Engine, Instance, Linker, Memory, Module, Store

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "guest_sdk" / "javascript"
PORT = FOLDER / "port"
RECORD = FOLDER / "built.json"
WASM = ROOT / "runtime" / "symphony_runtime" / "languages" / "javascript.wasm"
SDIST = "quickjs==1.19.4"
SDIST_SHA256 = "1205953abc24ff757f4a795304d5d61e4bf1e555c9ef6ec96a132d4b95535484"
UNIT = ("cutils.c", "libregexp.c", "libunicode.c", "libbf.c")
STACK_BYTES = 256 << 10
PAGE_BYTES = 65_536
FLAGS = (
    "-O2", "-std=gnu11", "-D_GNU_SOURCE", "-DEMSCRIPTEN", "-DCONFIG_STACK_CHECK", "-DCONFIG_BIGNUM",
    '-DCONFIG_VERSION="2021-03-27"', "-DFE_DOWNWARD=1", "-DFE_UPWARD=2", "-fno-strict-aliasing",
    "-Wno-everything",
)  # fmt: skip
# (before, after), each once in quickjs.c.
PATCHES = (
    # The parser notes where its last error is: QuickJS itself tells only the line.
    ("    va_start(ap, fmt);\n    JS_ThrowError2(ctx, JS_SYNTAX_ERROR, fmt, ap, FALSE);",
     "    parse_error_at = s->token.ptr;\n"
     "    va_start(ap, fmt);\n    JS_ThrowError2(ctx, JS_SYNTAX_ERROR, fmt, ap, FALSE);"),
    # A function on one line has no table of lines: then it is that line.
    ("    if (!b->has_debug || !b->debug.pc2line_buf) {\n        /* function was stripped */\n"
     "        return -1;",
     "    if (!b->has_debug || !b->debug.pc2line_buf) {\n"
     "        return b->has_debug ? b->debug.line_num : -1;"),
    # The collector runs by the bytes in use, which wasi-libc knows.
    ("#elif defined(EMSCRIPTEN)\n    return 0;", "#elif 0"),
    ("#elif defined(EMSCRIPTEN)\n    NULL,", "#elif 0"),
)  # fmt: skip
MEMORY, EXPORT, DATA = 5, 7, 11  # sections


def sources() -> list[Path]:
    """Return the files of this repository that the module depends on, sorted."""
    return sorted([*PORT.glob("*.[ch]"), FOLDER / "sdk.js", Path(__file__)])


def source_hash() -> str:
    """Return one hash of all of them, with their names."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode())
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def fetch(folder: Path) -> Path:
    """Download QuickJS, check its hash, unpack and patch it; return the folder of its C files."""
    options = ("--quiet", "--no-deps", "--no-binary=:all:", "-d", str(folder))
    download = [sys.executable, "-m", "pip", "download", *options, SDIST]
    subprocess.run(download, check=True)  # noqa: S603 - constants
    (archive,) = folder.glob("quickjs-*.tar.gz")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SDIST_SHA256:
        sys.exit(f"{archive.name} has the hash {found}, not {SDIST_SHA256}")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    upstream = next(folder.glob("quickjs-*/upstream-quickjs"))
    text = (upstream / "quickjs.c").read_text()
    for before, after in PATCHES:
        if text.count(before) != 1:
            sys.exit(f"quickjs.c is not the one that the patches are for: {before!r}")
        text = text.replace(before, after)
    (upstream / "quickjs.c").write_text(text)
    return upstream


def write_sdk(target: Path) -> None:
    """Write the SDK's source as C."""
    text = (FOLDER / "sdk.js").read_bytes()
    numbers = ",".join(map(str, [*text, 0]))
    target.write_text(
        f"const char sdk_source[] = {{{numbers}}};\nconst unsigned sdk_length = {len(text)};\n"
    )


def compile_module(upstream: Path, folder: Path) -> bytes:
    """Return the linked module, which is not set up yet."""
    write_sdk(folder / "sdk.c")
    made = folder / "javascript.wasm"
    units = [PORT / "module.c", folder / "sdk.c", *(upstream / name for name in UNIT)]
    linking = (
        "-mexec-model=reactor", f"-Wl,-z,stack-size={STACK_BYTES}", "-Wl,--stack-first",
        "-Wl,--strip-all", "-Wl,--gc-sections",
    )  # fmt: skip
    command = ["clang", "--target=wasm32-wasi", *FLAGS, *linking, f"-I{upstream}"]
    for place, name in ((upstream, "quickjs"), (PORT, "javascript"), (folder, "build")):
        command.append(f"-ffile-prefix-map={place}={name}")
    subprocess.run([*command, *map(str, units), "-o", str(made)], check=True)  # noqa: S603 - ours
    return made.read_bytes()


# --- Set-up --------------------------------------------------------------------------------------
def set_up(wasm: bytes) -> bytes:
    """Run `_initialize`, and return the module with the memory that it leaves as its data."""
    engine = Engine()
    module, store, linker = Module(engine, wasm), Store(engine), Linker(engine)
    for item in module.imports:  # the clock and such: 0
        results = [0] * len(item.type.results)
        answer = results[0] if results else None
        linker.define_func(item.module, item.name, item.type, lambda *_, answer=answer: answer)
    instance: Instance = linker.instantiate(store, module)
    exports = instance.exports(store)
    exports["_initialize"](store)
    memory = exports["memory"]
    assert isinstance(memory, Memory)
    return with_memory(wasm, bytes(memory.read(store, 0, memory.data_len(store))))


def with_memory(wasm: bytes, memory: bytes) -> bytes:
    """Return a module whose memory begins so, without its `_initialize`."""
    out = wasm[:8]
    for section, at, size in read_sections(wasm):
        body = wasm[at : at + size]
        if section == MEMORY:
            body = b"\x01\x00" + leb(len(memory) // PAGE_BYTES)
        elif section == EXPORT:
            body = without_initialize(body)
        elif section == DATA:
            body = data_of(memory)
        out += bytes([section]) + leb(len(body)) + body
    return out


def data_of(memory: bytes) -> bytes:
    """Return a data section of what is not zero in a memory: runs, at most 64 zeros in each."""
    segments, at = [], 0
    while at < len(memory):
        if not memory[at]:
            at += 1
            continue
        end = memory.find(bytes(64), at)
        end = len(memory) if end < 0 else end
        segments.append((at, memory[at:end]))
        at = end
    parts = [b"\x00\x41" + sleb(at) + b"\x0b" + leb(len(data)) + data for at, data in segments]
    return leb(len(parts)) + b"".join(parts)


def without_initialize(body: bytes) -> bytes:
    """Return an export section without `_initialize`."""
    count, at = read_leb(body, 0)
    kept = []
    for _ in range(count):
        begin = at
        length, at = read_leb(body, at)
        name, at = body[at : at + length], at + length + 1
        _, at = read_leb(body, at)
        if name != b"_initialize":
            kept.append(body[begin:at])
    return leb(len(kept)) + b"".join(kept)


def leb(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def sleb(value: int) -> bytes:
    """Return a signed LEB128 of a value that is not negative."""
    out = b""
    while value >= 0x40:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def read_leb(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = body[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def describe(wasm: bytes) -> dict[str, str]:
    """Return what is recorded of a build from the present sources."""
    asked = subprocess.run(
        ["clang", "--version"],  # noqa: S607 - the developer's own
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        "compiler": asked.stdout.splitlines()[0],
        "quickjs": f"{SDIST} sha256:{SDIST_SHA256}",
        "source": source_hash(),
        "wasm": hashlib.sha256(wasm).hexdigest(),
    }


def main() -> int:
    if shutil.which("clang") is None or shutil.which("wasm-ld") is None:
        sys.exit("install clang, lld, wasi-libc and libclang-rt-14-dev-wasm32 (Debian's names)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wasm = set_up(compile_module(fetch(folder), folder))
    WASM.write_bytes(wasm)
    RECORD.write_text(json.dumps(describe(wasm), indent=2) + "\n")
    sys.stdout.write(f"   {WASM.name:24} {len(wasm) / 1024:6.1f} KB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
