"""Guest projects on the developer's machine: `symphony new` and `symphony build`.

A project is a folder that makes one LIP: a Cargo package (Rust), an AssemblyScript package, or a
`main.js` or `main.py`, which the server runs. `new` creates one that builds without a network:
outside this repository it holds a copy of the SDK (`vendor/`). `build` finds a compiler and writes
`build/<name>.wasm`, with the project's `manifest.json`, if there is one, as the program's manifest.
"""

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from symphony_runtime.cli.function_names import name_own_functions
from symphony_runtime.cli.output import CommandError
from symphony_runtime.cli.project_settings import manifest_text
from symphony_runtime.compiler.manifest import check_manifest, with_manifest

_COMPILED = ("rust", "assemblyscript")
_SOURCES = ("javascript", "python")  # that the server runs as they are
LANGUAGES = (*_COMPILED, *_SOURCES)
KINDS = ("completion", "chat", "agent", "rag", "structured")  # templates

WASM_TARGET = "wasm32-unknown-unknown"
NODE_MIN = 18  # its major version; 18.20 and 20.20 compile to the same bytes
_SYSTEM_RUST = ("/usr/bin/cargo", "/usr/bin/rustc")  # of Debian's packages
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_REPOSITORY = Path(__file__).resolve().parents[3]
_WHEELS_SDKS = Path(__file__).resolve().parent / "guest_sdk"  # a checkout has none there
_SDKS = {
    lang: (_WHEELS_SDKS if _WHEELS_SDKS.is_dir() else _REPOSITORY / "guest_sdk") / lang
    for lang in _COMPILED
}
_TEMPLATES = Path(__file__).resolve().parent / "templates"
# The SDK's place in a project outside the repository; the folder has the import's name.
_VENDORED = {
    "rust": Path("vendor") / "symphony",
    "assemblyscript": Path("vendor") / "symphony-lip",
}
_NOT_SOURCES = ("target", "node_modules", "build", "tests", "*.wasm")
_OUTPUT_LINES_SHOWN = 60
# A quick build is for the next run only: it is compiled in pieces that are kept, and not optimized.
_QUICK_RUST = {
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_DEV_INCREMENTAL": "true",
    "CARGO_PROFILE_DEV_OPT_LEVEL": "1",  # at 0 the server compiles four times as much
    "CARGO_PROFILE_DEV_STRIP": "debuginfo",  # the standard library's; names of functions stay
}
_QUICK_ASSEMBLYSCRIPT = ["--optimizeLevel", "0", "--shrinkLevel", "0"]

_NO_RUST = f"""no Rust compiler with the {WASM_TARGET} target was found. Either of these gives one:
  rustup target add {WASM_TARGET}
  apt-get install rustc cargo libstd-rust-dev-wasm32 lld    (Debian, Ubuntu)"""
_NO_ASC = f"""the AssemblyScript compiler was not found. In the project's folder:
  npm install
(Node.js {NODE_MIN} or newer: apt-get install nodejs npm; with Debian 12's Node.js 18 npm warns
that the compiler asks for 20, and it works all the same)"""


class ProjectError(CommandError):
    """A project cannot be created or built. The message says what to do."""


@dataclass(frozen=True, slots=True)
class RustToolchain:
    """A cargo and the rustc that it uses.

    `unfit` is a rustc that comes before it in the order and cannot compile to Wasm, "" for none.
    """

    cargo: str
    rustc: str
    unfit: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"RUSTC": self.rustc}

    def describe(self) -> str:
        """Return the compiler, and why it is not the one that comes first."""
        words = _describe_rustc(self.rustc)
        if not self.unfit:
            return words
        lacking = _describe_rustc(self.unfit)
        return f"{words}, as {lacking} lacks the target: rustup target add {WASM_TARGET}"


def new(name: str, lang: str, directory: Path, kind: str = KINDS[0]) -> Path:
    """Create the project `name` as the new folder `directory/name`; return that folder.

    `kind` is the template, one of `KINDS`.

    Raises ProjectError: the name is no package name, the language or the template is unknown, the
    folder exists, or the SDK's sources are not next to this package.
    """
    if not _NAME.fullmatch(name):
        raise ProjectError(f"{name!r} is no project name: a-z first, then a-z, 0-9, _ and -")
    if lang not in LANGUAGES:
        raise ProjectError(f"unknown language {lang!r}: there are {', '.join(LANGUAGES)}")
    project = directory.resolve() / name
    if project.exists() and (not project.is_dir() or any(project.iterdir())):
        raise ProjectError(f"{project} exists already and is not an empty folder")
    if kind not in KINDS:
        raise ProjectError(f"unknown template {kind!r}: there are {', '.join(KINDS)}")
    files = _template_files(lang, kind)
    values = {"name": name} | (_place_sdk(project, lang) if lang in _COMPILED else {})
    for target, source in files.items():
        _write_template(source, project / target, values)
    return project


@dataclass(frozen=True, slots=True)
class Finished:
    """How a compiler has ended, and what it has written."""

    code: int
    stdout: str
    stderr: str


RunCompiler = Callable[[list[str], Path, dict[str, str]], Finished]


def run_compiler(command: list[str], directory: Path, environment: dict[str, str]) -> Finished:
    """Run a compiler in the project's folder, to its end."""
    done = subprocess.run(  # noqa: S603 - the developer's own compiler
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def build(
    directory: Path,
    say: Callable[[str], object] = lambda _: None,
    *,
    quick: bool = False,
    run: RunCompiler = run_compiler,
) -> Path:
    """Compile the project in `directory` to `directory/build/<name>.wasm`; return that path.

    `say` gets a line with the compiler before it starts. `quick` gives a larger and slower module
    sooner. `run` runs the compiler.

    Raises ProjectError: it is no project, there is no compiler, or the compiler failed; the message
    has its output.
    """
    directory = directory.resolve()
    if (directory / "Cargo.toml").is_file():
        return _build_rust(directory, say, quick=quick, run=run)
    if (directory / "asconfig.json").is_file() or (directory / "package.json").is_file():
        return _build_assemblyscript(directory, say, quick=quick, run=run)
    raise ProjectError(f"{directory} holds no Cargo.toml, asconfig.json or package.json")


def put_manifest(wasm: bytes, path: Path) -> bytes:
    """Return a module with the manifest of a file.

    Raises ProjectError: the file cannot be read or is no manifest, or the module is none.
    """
    try:
        return _put_manifest_text(wasm, path.read_bytes(), path)
    except OSError as error:
        raise ProjectError(f"{path}: {error.strerror}") from error


def _put_manifest_text(wasm: bytes, content: bytes, origin: Path) -> bytes:
    text, problems = check_manifest(content)
    if problems:
        raise ProjectError("\n".join([f"{origin}:", *problems]))
    try:
        return with_manifest(wasm, text.encode())
    except ValueError as error:
        raise ProjectError(str(error)) from error


def find_rust_toolchain() -> RustToolchain:
    """Return the first Rust toolchain that can compile to Wasm.

    It tries CARGO and RUSTC of the environment, those on PATH (rustup's), then the system's.

    Raises ProjectError: none can; the message says what to install.
    """
    return _first_fit(tuple(_rust_candidates()))


@lru_cache(maxsize=8)  # asking a compiler takes as long as a small build
def _first_fit(candidates: tuple[RustToolchain, ...]) -> RustToolchain:
    unfit = ""
    for toolchain in candidates:
        if _compiles_to_wasm(toolchain):
            return replace(toolchain, unfit=unfit)
        unfit = unfit or toolchain.rustc
    raise ProjectError(_NO_RUST)


# --- new -----------------------------------------------------------------------------------------


def _template_files(lang: str, kind: str) -> dict[Path, Path]:
    """Return a template's files by their place in a project.

    A kind's own files are in place of the language's. `shared` has those of all languages, and
    `source` those of languages whose programs have their manifest in the source.
    """
    roots = [_TEMPLATES / lang]
    if kind != KINDS[0]:
        parts = ("shared", *(["source"] if lang in _SOURCES else []), lang)
        roots += [_TEMPLATES / "kinds" / kind / part for part in parts]
    files: dict[Path, Path] = {}
    for root in roots:
        found = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
        if not found:
            raise ProjectError(f"this installation has no template {kind} for {lang}")
        files |= found
    return files


def _write_template(source: Path, target: Path, values: dict[str, str]) -> None:
    if target.name == "gitignore":  # a dot file would not be packaged
        target = target.with_name(".gitignore")
    text = source.read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace("{{" + key + "}}", value)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def _place_sdk(project: Path, lang: str) -> dict[str, str]:
    """Return the SDK's paths from the project: `sdk`, and `packages`, where asc searches.

    Outside the repository the SDK's sources are copied into the project first.
    """
    sdk = _SDKS[lang]
    if not sdk.is_dir():
        raise ProjectError(
            f"the {lang} SDK is not part of this installation ({sdk}); install Symphony from a "
            "wheel of `make wheel`, or from a clone with `pip install -e .`"
        )
    project.mkdir(parents=True, exist_ok=True)
    if project.is_relative_to(_REPOSITORY):
        path = os.path.relpath(sdk, project).replace(os.sep, "/")
        return {"sdk": path, "packages": f"{path}/node_modules"}
    vendored = _VENDORED[lang]
    shutil.copytree(sdk, project / vendored, ignore=shutil.ignore_patterns(*_NOT_SOURCES))
    return {"sdk": vendored.as_posix(), "packages": vendored.parent.as_posix()}


# --- build: Rust ---------------------------------------------------------------------------------


def _rust_candidates() -> Iterator[RustToolchain]:
    for cargo, rustc in (
        (os.environ.get("CARGO"), os.environ.get("RUSTC")),
        (shutil.which("cargo"), shutil.which("rustc")),
        _SYSTEM_RUST,
    ):
        if cargo and rustc and shutil.which(cargo) and shutil.which(rustc):
            yield RustToolchain(cargo, rustc)


def _compiles_to_wasm(toolchain: RustToolchain) -> bool:
    # rustc prints the library's folder even if it does not exist.
    asked = subprocess.run(  # noqa: S603 - the developer's own compiler
        [toolchain.rustc, "--print", "target-libdir", "--target", WASM_TARGET],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.returncode == 0 and any(Path(asked.stdout.strip()).glob("libcore-*.rlib"))


@lru_cache(maxsize=8)
def _describe_rustc(rustc: str) -> str:
    """Return a compiler's version and path, as `rustc 1.63.0 (/usr/bin/rustc)`."""
    asked = subprocess.run(  # noqa: S603 - the developer's own compiler
        [rustc, "--version"], capture_output=True, text=True, check=False
    )
    version = " ".join(asked.stdout.split()[:2]) or "rustc"
    return f"{version} ({shutil.which(rustc) or rustc})"


def _build_rust(
    directory: Path, say: Callable[[str], object], *, quick: bool, run: RunCompiler
) -> Path:
    name = _cargo_package(directory)
    toolchain = find_rust_toolchain()
    compiler = toolchain.describe()
    say(f"building {name} with {compiler}")
    command = [toolchain.cargo, "build", "--target", WASM_TARGET]
    command += [] if quick else ["--release"]
    output = compile_with(
        run,
        [*command, "--message-format", "json-render-diagnostics"],
        directory,
        toolchain.environment | (_QUICK_RUST if quick else {}),
        compiler,
    )
    modules = list(_cargo_modules(output, directory))
    if len(modules) != 1:
        raise ProjectError(
            f"{directory / 'Cargo.toml'} gives {len(modules)} modules, and a LIP is one: "
            'its [lib] needs crate-type = ["cdylib"]'
        )
    return install_module(modules[0].read_bytes(), directory, name)


def _cargo_package(directory: Path) -> str:
    try:
        manifest = tomllib.loads((directory / "Cargo.toml").read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ProjectError(f"{directory / 'Cargo.toml'}: {error}") from error
    name = manifest.get("package", {}).get("name")
    if not isinstance(name, str):
        raise ProjectError(f"{directory / 'Cargo.toml'} names no package")
    return name


def _cargo_modules(output: str, directory: Path) -> Iterator[Path]:
    """Yield the package's own Wasm files from cargo's JSON lines."""
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        own = event.get("manifest_path") == str(directory / "Cargo.toml")
        if event.get("reason") == "compiler-artifact" and own:
            yield from (Path(file) for file in event["filenames"] if file.endswith(".wasm"))


# --- build: AssemblyScript -----------------------------------------------------------------------


def _build_assemblyscript(
    directory: Path, say: Callable[[str], object], *, quick: bool, run: RunCompiler
) -> Path:
    name = _npm_package(directory)
    compiler = _describe_asc(*_find_asc(directory))
    say(f"building {name} with {compiler}")
    options = _QUICK_ASSEMBLYSCRIPT if quick else []
    return install_module(_asc(directory, name, options, run), directory, name)


def build_assemblyscript_module(directory: Path, source: Path, run: RunCompiler) -> bytes:
    """Compile a source together with its project's program, not optimized; return the module.

    Raises ProjectError: as `build`.
    """
    return _asc(directory, source.stem, [*_QUICK_ASSEMBLYSCRIPT], run, source)


def _asc(
    directory: Path, name: str, options: list[str], run: RunCompiler, source: Path | None = None
) -> bytes:
    """Run asc on a source, by default the project's; return the module with its authors' names."""
    node, asc = _find_asc(directory)
    made = directory / "build" / f"{name}.{os.getpid()}.wasm"
    made.parent.mkdir(exist_ok=True)
    source_map = made.with_name(made.name + ".map")
    try:
        # Exports of all entries are the module's: a source is compiled together with the program.
        entries = [] if source is None else [os.path.relpath(source, directory)]
        command = [node, str(asc), *entries, "--config", "asconfig.json", "--debug"]
        command += [*options, "--sourceMap", "--outFile", str(made)]
        compile_with(run, command, directory, dict(os.environ), _describe_asc(node, asc))
        return name_own_functions(made.read_bytes(), source_map.read_text(encoding="utf-8"))
    finally:
        for path in (made, source_map):
            path.unlink(missing_ok=True)


@lru_cache(maxsize=8)
def _describe_asc(node: str, asc: Path) -> str:
    """Return the compiler's version and what runs it, as `asc 0.28.20 on node v20.20.2 (PATH)`."""
    manifest = json.loads((asc.parents[1] / "package.json").read_text(encoding="utf-8"))
    asked = subprocess.run(  # noqa: S603 - the developer's own
        [node, "--version"], capture_output=True, text=True, check=False
    )
    return f"asc {manifest.get('version')} on node {asked.stdout.strip()} ({node})"


def _npm_package(directory: Path) -> str:
    manifest = directory / "package.json"
    if not manifest.is_file():
        return directory.name
    try:
        name = json.loads(manifest.read_text(encoding="utf-8")).get("name", directory.name)
    except ValueError as error:
        raise ProjectError(f"{manifest}: {error}") from error
    return str(name).rpartition("/")[2]


def _find_asc(directory: Path) -> tuple[str, Path]:
    """Return node, and the project's own compiler or the SDK's."""
    node = shutil.which("node")
    # Not in the folders above, as Node.js does: others may write there, as in /tmp.
    for home in (directory, _SDKS["assemblyscript"]):
        compiler = home / "node_modules" / "assemblyscript" / "bin" / "asc.js"
        if node and compiler.is_file():
            return node, compiler
    raise ProjectError(_NO_ASC)


# --- both ----------------------------------------------------------------------------------------


def compile_with(
    run: RunCompiler,
    command: list[str],
    directory: Path,
    environment: dict[str, str],
    compiler: str,
) -> str:
    """Run a compiler in the project's folder; return its standard output."""
    done = run(command, directory, environment)
    if done.code != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        words = "\n".join(lines[-_OUTPUT_LINES_SHOWN:])
        name = Path(command[0]).name
        raise ProjectError(f"{name} failed in {directory}:\n{words}\nThe compiler is {compiler}")
    return done.stdout


def install_module(module: bytes, directory: Path, name: str) -> Path:
    """Write a project's module, with its manifest, to `build/<name>.wasm`; return that path.

    Raises ProjectError: the manifest is wrong.
    """
    target = directory / "build" / f"{name}.wasm"
    target.parent.mkdir(exist_ok=True)
    # A reader gets the old module or the new one, never half of one.
    part = target.with_suffix(f".{os.getpid()}")
    part.write_bytes(_with_own_manifest(module, directory))
    part.replace(target)
    return target


def sdk_folder(lang: str) -> Path:
    """Return where a language's SDK is, in a checkout or an installation."""
    return (_WHEELS_SDKS if _WHEELS_SDKS.is_dir() else _REPOSITORY / "guest_sdk") / lang


def _with_own_manifest(wasm: bytes, directory: Path) -> bytes:
    text = manifest_text(directory)
    return wasm if text is None else _put_manifest_text(wasm, text, directory / "manifest.json")
