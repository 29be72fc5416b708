"""The command line: `symphony run`, `upload`, `runs`, ... (docs/reference/http.md)."""

import argparse
import asyncio
import contextlib
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from symphony import AsyncClient, ClientError, Event, ServerError

from symphony_runtime.cli.adapters import add_adapters
from symphony_runtime.cli.admin import add_admin
from symphony_runtime.cli.arguments import LIMITED, LISTING, SERVER, Parser, add_command
from symphony_runtime.cli.development.commands import add_development
from symphony_runtime.cli.kv import add_kv
from symphony_runtime.cli.output import (
    STDOUT,
    CommandError,
    RunOutput,
    first,
    print_json,
    print_listing,
    progress,
    say,
    show,
    time_of,
)
from symphony_runtime.cli.servers import choose, list_servers
from symphony_runtime.languages.language import JAVASCRIPT, SHIPPED, WASM_TYPE, of_suffix

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
# Exit codes as a shell reports an aborted or a killed process, and words.
_ENDINGS = {
    "trapped": (134, "trapped"),
    "killed": (137, "was killed"),
    "failed": (EXIT_FAILED, "failed"),
}
# By what the server does not have.
_REMEDIES = {
    "program": "`symphony programs` lists them; a file's name ends in .wasm or is a path",
    "run": "`symphony runs` lists them",
    "KV file": "`symphony kv list` lists them",
    "adapter": "`symphony adapters list` lists them",
    "tenant": "`symphony admin tenants list` lists them",
    "key": "`symphony admin keys list` lists them",
    "gateway": "`symphony admin gateways list` lists them",
}
_LEVELS = ("debug", "info", "warning", "error")
_LANGUAGES = ("rust", "assemblyscript", "javascript", "python")  # `projects` takes long to import
_DESCRIPTION_SHOWN = 60  # characters
_ERROR = 3  # always shown: programs log why they failed
_READ_BYTES = 1 << 16
_ServerCommand = Callable[[AsyncClient, argparse.Namespace], Awaitable[int | None]]


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = make_parser(serves="serve" in arguments).parse_args(arguments)
    command = options.command
    try:
        if inspect.iscoroutinefunction(command):
            return asyncio.run(_with_server(command, options)) or 0
        return command(options) or 0
    except (CommandError, ClientError) as error:
        return _complain(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `symphony runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _complain(error: Exception) -> int:
    problems = error.problem.get("problems") if isinstance(error, ServerError) else None
    for words in problems or [str(error)]:
        print(f"symphony: {words}", file=sys.stderr)
    return EXIT_FAILED


# --- Commands that need no server ----------------------------------------------------------------
def _serve(options: argparse.Namespace) -> int:
    from symphony_runtime.cli.serving.serve import serve
    from symphony_runtime.config.serve import OptionsError

    try:
        return serve(options)
    except OptionsError as error:
        raise CommandError(str(error)) from error


def _build(options: argparse.Namespace) -> None:
    from symphony_runtime.cli.development.languages import language_of
    from symphony_runtime.cli.projects import run_compiler

    directory = options.directory.resolve()
    print(language_of(directory).build(directory, say, quick=False, run=run_compiler))


def _new(options: argparse.Namespace) -> None:
    from symphony_runtime.cli import projects

    made = projects.new(options.name, options.lang, options.directory, options.template)
    print(f"{made}\nnext: symphony dev {made}")


def _doctor(options: argparse.Namespace) -> int:
    from symphony_runtime.cli.doctor import examine

    checks = examine(options.model, choose(options).url)
    if options.json:
        fields = ("name", "good", "needed", "words")
        print_json([{name: getattr(check, name) for name in fields} for check in checks])
    else:
        for check in checks:
            sign = "ok" if check.good else "MISSING" if check.needed else "no"
            print(f"{sign:8}{check.name:16}{check.words}")
    return 0 if all(check.good for check in checks if check.needed) else EXIT_FAILED


# --- Programs ------------------------------------------------------------------------------------
async def _upload(client: AsyncClient, options: argparse.Namespace) -> None:
    body, content_type = _read_program(options.file)
    if options.manifest is not None:
        from symphony_runtime.cli.projects import put_manifest

        if content_type != WASM_TYPE:
            raise CommandError("the manifest of a source is in its first comment, not in a file")
        body = put_manifest(body, options.manifest)
    program = await client.programs.upload(body, options.name or options.file.stem, content_type)
    show(options, program, f"{program['name']}  {program['id']}")


async def _programs(client: AsyncClient, options: argparse.Namespace) -> None:
    if options.action != "list":
        if options.program is None:
            raise CommandError(f"which program? symphony programs {options.action} NAME")
        if options.action == "rm":
            await _remove_program(client, options)
        elif options.action == "versions":
            await _list_versions(client, options)
        else:
            print_json(await client.programs.get(options.program))
        return
    print_listing(options, await first(client.programs.list(), options.limit), {
        "NAME": lambda program: program["name"] or "-",
        "ID": lambda program: program["id"][:19],
        "LANGUAGE": "language",
        "BYTES": "size",
        "ENTRIES": lambda program: ",".join(program["entries"]),
        "UPLOADED": time_of("created_ms"),
        "DESCRIPTION": lambda program: (program["description"] or "").strip()[:_DESCRIPTION_SHOWN],
    })  # fmt: skip


async def _remove_program(client: AsyncClient, options: argparse.Namespace) -> None:
    name, _, version = options.program.partition("@")
    if version:
        await client.programs.delete_version(name, version)
    elif options.all:
        await client.programs.delete_name(name)
    else:
        await client.programs.delete(name)


async def _versions(client: AsyncClient, options: argparse.Namespace) -> None:
    from symphony_runtime.cli.development.deploying import versions_of

    options.program = versions_of(options)
    await _list_versions(client, options)


async def _list_versions(client: AsyncClient, options: argparse.Namespace) -> None:
    versions = await client.programs.versions(options.program)
    print_listing(options, versions[: options.limit], {
        "VERSION": lambda version: _digits(version["id"]),
        "NOW": lambda version: "*" if version["current"] else "",
        "LANGUAGE": "language",
        "BYTES": "size",
        "UPLOADED": time_of("added_ms"),
        "USED": time_of("used_ms"),
        "RUNS": "runs",
        "ERRORS": "errors",
    })  # fmt: skip


async def _rollback(client: AsyncClient, options: argparse.Namespace) -> None:
    try:
        program = await client.programs.rollback(options.name, options.version)
    except LookupError as error:
        raise CommandError(f"{error} (`symphony programs versions` lists them)") from error
    show(options, program, f"{options.name}@{_digits(program['id'])}")


async def _alias(client: AsyncClient, options: argparse.Namespace) -> None:
    program = await client.programs.point(options.name, options.program)
    show(options, program, f"{options.name}@{_digits(program['id'])}")


def _digits(program_id: str) -> str:
    return program_id.removeprefix("sha256:")[:12]


# --- Runs ----------------------------------------------------------------------------------------
async def _run(client: AsyncClient, options: argparse.Namespace) -> int | None:
    program = options.program
    if (path := _program_file(program)) is not None:
        with progress(f"checking and compiling {path.name}"):
            body, content_type = _read_program(path)
            program = (await client.programs.upload(body, path.stem, content_type))["id"]
    wanted: dict[str, Any] = {"input": _input(options.input), "limits": dict(options.limit)}
    given = {name: getattr(options, name) for name in ("entry", "model", "priority", "trace")}
    wanted |= {name: value for name, value in given.items() if value is not None}
    with progress(f"starting {options.program}"):
        run = await client.start(program, **wanted)
    if options.detach:
        print(json.dumps({"id": run}) if options.json else run)
        return None
    return await _follow_run(client, run, options)


async def _follow_run(client: AsyncClient, run: str, options: argparse.Namespace) -> int:
    """Show a run until it ends; Ctrl-C cancels it."""
    if options.json:
        print(json.dumps({"id": 0, "event": "run", "run": run}), flush=True)
    loop = asyncio.get_running_loop()
    following = asyncio.create_task(_show_events(run, client.runs.events(run), options))
    loop.add_signal_handler(signal.SIGINT, following.cancel)
    sending = asyncio.create_task(_send_stdin(client, run, options.interactive))
    try:
        return await following
    except asyncio.CancelledError:
        await client.runs.cancel(run)
        return EXIT_INTERRUPTED
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        sending.cancel()
        await asyncio.wait([sending])
        if not sending.cancelled() and (error := sending.exception()) is not None:
            print(f"symphony: a message was not sent: {error}", file=sys.stderr)


async def _send_stdin(client: AsyncClient, run: str, interactive: bool) -> None:
    """Send the lines of stdin as messages, if asked to; then close the input."""
    try:
        if interactive:
            async for line in _stdin_lines():
                await _send(client, run, line)
        await _send(client, run, b"", close=True)
    except ServerError as error:
        if error.status != 409:  # the run has ended: nothing reads it
            raise


async def _send(client: AsyncClient, run: str, message: bytes, *, close: bool = False) -> None:
    """Send a message; wait while the program's inbox is full."""
    while True:
        try:
            return await client.runs.send(run, message, close=close)
        except ServerError as error:
            if error.status != 429:
                raise
            await asyncio.sleep(error.retry_after or 1)


async def _stdin_lines() -> AsyncIterator[bytes]:
    """Yield stdin's lines without their ends: of a terminal, a pipe or a file."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    def read() -> None:
        # Not sys.stdin: its lock would be held while we wait, and the interpreter needs it at exit.
        with (
            contextlib.suppress(RuntimeError),  # the loop has closed: the run has ended
            open(sys.stdin.fileno(), "rb", buffering=_READ_BYTES, closefd=False) as stdin,
        ):
            for line in stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line.removesuffix(b"\n"))
            loop.call_soon_threadsafe(lines.put_nowait, None)

    # A daemon thread: a read cannot be interrupted when no run needs a line any longer.
    threading.Thread(target=read, daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line


async def _show_events(run: str, events: AsyncIterator[Event], options: argparse.Namespace) -> int:
    """Write messages to stdout and the rest to stderr; return the exit code."""
    code, output = EXIT_FAILED, RunOutput(lines=options.lines)
    try:
        async for event in events:
            if event.kind == "status":
                code = _exit_code(event.data)
            if options.json:
                print(json.dumps({"id": event.id, "event": event.kind, **event.data}), flush=True)
            elif event.kind == "message":
                output.message(event.message())
            elif event.kind == "log" and event.data.get("by") == "server":
                output.note(f"symphony: {run}: {event.data['text']}")
            elif event.kind == "log" and (options.verbose or event.data["level"] == _ERROR):
                output.note(_log_line(event))
            elif event.kind == "status" and event.data["status"] in _ENDINGS:
                _, words = _ENDINGS[event.data["status"]]
                output.note(f"symphony: the run {words}: {event.data['reason']}")
    finally:
        output.end_line()
    return code


def _exit_code(status: Mapping[str, Any]) -> int:
    if status["status"] == "exited":
        return int(status["exit_code"] or 0) & 0xFF
    code, _ = _ENDINGS.get(status["status"], (EXIT_FAILED, ""))
    return code


async def _runs(client: AsyncClient, options: argparse.Namespace) -> None:
    runs = await (client.runs.live() if options.live else first(client.runs.list(), options.limit))
    print_listing(options, runs[: options.limit], {
        "ID": "id",
        "PROGRAM": lambda run: run["program_name"] or run["program"][:19],
        "STATUS": _state,
        "TOKENS": _tokens,
        "BEGUN": time_of("created_ms"),
        "REASON": lambda run: _waits(run) or run["reason"],
    })  # fmt: skip


def _tokens(run: Mapping[str, Any]) -> object:
    if held := run.get("held"):
        return held["tokens"]
    return (run["usage"] or {}).get("completion_tokens", "")


def _waits(run: Mapping[str, Any]) -> str:
    return f"waits for {run['waits_for']}" if run.get("waits_for") else ""


def _state(run: Mapping[str, Any]) -> str:
    code = run["exit_code"]
    return str(run["status"]) if code is None else f"{run['status']} {code}"


async def _top(client: AsyncClient, options: argparse.Namespace) -> None:
    from symphony_runtime.cli import top

    await top.show(client, as_json=options.json)


async def _logs(client: AsyncClient, options: argparse.Namespace) -> None:
    async for event in client.runs.events(options.run, follow=options.follow):
        if event.kind == "log":
            print(json.dumps(event.data) if options.json else _log_line(event), flush=True)


async def _trace(client: AsyncClient, options: argparse.Namespace) -> None:
    trace = await client.runs.trace(options.run)
    text = json.dumps(trace, ensure_ascii=False, separators=(",", ":")) + "\n"
    output: Path = options.output or Path(f"{options.run}.trace.json")
    if output == STDOUT:
        sys.stdout.write(text)
        return
    _write(output, text)
    spans = sum(event["ph"] == "X" for event in trace["traceEvents"])
    print(f"{output}: {spans} spans; https://ui.perfetto.dev shows them", file=sys.stderr)


async def _cancel(client: AsyncClient, options: argparse.Namespace) -> None:
    run = await client.runs.cancel(options.run)
    show(options, run, f"{run['status']} {run['reason']}")


def _log_line(event: Event) -> str:
    return f"{_LEVELS[event.data['level']]}: {event.data['text']}"


# --- Helpers -------------------------------------------------------------------------------------
async def _with_server(command: _ServerCommand, options: argparse.Namespace) -> int | None:
    """Run a command with a client of the chosen server."""
    choice = choose(options)
    async with AsyncClient(choice.server(), choice.key, retries=0) as client:
        choice.show_origin()
        try:
            return await command(client, options)
        except ServerError as error:
            if error.status == 401 and (words := choice.no_key()):
                raise CommandError(f"{words}; the server says: {error}") from error
            remedy = _REMEDIES.get(error.problem.get("what", "") if error.status == 404 else "")
            if remedy is not None:
                raise CommandError(f"{error} ({remedy})") from error
            raise


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error


def _read_program(path: Path) -> tuple[bytes, str]:
    """Return a program's bytes and content type: a module's, or its language's."""
    if path.suffix in (".ts", ".mts"):
        return _strip_types(path), JAVASCRIPT.content_types[0]
    language = of_suffix(SHIPPED, path.suffix)
    return _read(path), WASM_TYPE if language is None else language.content_types[0]


def _strip_types(path: Path) -> bytes:
    from symphony_runtime.cli.development.typescript import TypeScriptError, strip_types

    try:
        return strip_types(path)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except TypeScriptError as error:
        raise CommandError(str(error)) from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error


def _program_file(program: str) -> Path | None:
    path = Path(program)
    try:
        return path if path.suffix == ".wasm" or path.is_file() else None
    except OSError:  # too long for a path
        return None


def _input(text: str) -> Any:
    """Return the value of --input: JSON, else the text; @FILE is the file's text."""
    if text.startswith("@"):
        return _read(Path(text[1:])).decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError as error:
        if text.startswith(("{", "[", '"')):
            print(f"symphony: --input is sent as text: it is no JSON: {error}", file=sys.stderr)
        return text


def _limit(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name or not value.isdigit():
        raise argparse.ArgumentTypeError("a limit is NAME=NUMBER, for example wall_ms=1000")
    return name, int(value)


def _version() -> str:
    try:
        return version("symphony-lip")
    except PackageNotFoundError:  # run from a source tree
        return "0"


# --- Arguments -----------------------------------------------------------------------------------
def make_parser(*, serves: bool) -> argparse.ArgumentParser:
    """Return the parser; only with `serves` the flags of `serve`, whose model takes 70 ms."""
    parser = Parser(prog="symphony", description="An LLM serving system that serves programs.")
    parser.add_argument("--version", action="version", version=f"symphony {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add = partial(add_command, commands)
    usual = SERVER, LISTING
    serve = add("serve", "start the server", _serve)
    if serves:
        from symphony_runtime.cli.serving.serve import add_serve

        add_serve(serve)
    _add_run(add("run", "run a program and show its messages", _run, *usual))
    upload = add("upload", "upload a program", _upload, *usual)
    words = "a .wasm module, or source: .js, .ts, .py"
    upload.add_argument("file", type=Path, help=words, metavar="FILE")
    upload.add_argument("--name", help="its name (else the file's)")
    upload.add_argument(
        "--manifest", type=Path, metavar="FILE.json", help="its description and schemas"
    )
    words = "list programs and versions, show or remove one"
    _add_programs(add("programs", words, _programs, *usual, LIMITED))
    rollback = add("rollback", "point a name at an older version of its program", _rollback, *usual)
    rollback.add_argument("name")
    rollback.add_argument(
        "version", nargs="?", help="the digest's first digits (else the one before)"
    )
    versions = add("versions", "list the versions of a program", _versions, *usual, LIMITED)
    versions.add_argument("name", nargs="?", help="else that of symphony.toml in this folder")
    alias = add("alias", "point a name, maybe a new one, at a program", _alias, *usual)
    alias.add_argument("name")
    alias.add_argument("program", metavar="PROGRAM", help="a name, NAME@VERSION or an id")
    runs = add("runs", "list runs, newest first", _runs, *usual, LIMITED)
    runs.add_argument("--live", action="store_true", help="only those that have not ended")
    add("servers", "list the servers that run here", list_servers, LISTING)
    add("top", "show the load of the server, once a second", _top, *usual)
    logs = add("logs", "show the log of a run", _logs, *usual)
    logs.add_argument("run")
    logs.add_argument("-f", "--follow", action="store_true", help="until the run ends")
    trace = add("trace", "save the trace of a run, for Perfetto", _trace, SERVER)
    trace.add_argument("run", help="of `symphony run --trace`")
    trace.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="default RUN.trace.json; - is stdout"
    )
    cancel = add("cancel", "end a run", _cancel, *usual)
    cancel.add_argument("run")
    add_kv(commands)
    add_adapters(commands)
    add_admin(commands)
    build = add("build", "compile a program's project", _build)
    build.add_argument("directory", type=Path, nargs="?", default=Path())
    new = add("new", "create a project for a program", _new)
    new.add_argument("name")
    new.add_argument("--lang", choices=_LANGUAGES, default="rust")
    new.add_argument(
        "--template",
        choices=("completion", "chat", "agent", "rag", "structured"),
        default="completion",
        help="what the program does at first; default completion",
    )
    new.add_argument("--directory", type=Path, default=Path(), help="where to create its folder")
    add_development(commands)
    doctor = add("doctor", "check what this machine has and lacks", _doctor, *usual)
    doctor.add_argument("--model", default="tiny")
    return parser


def _add_programs(programs: argparse.ArgumentParser) -> None:
    programs.add_argument(
        "action", nargs="?", choices=("list", "versions", "show", "rm"), default="list"
    )
    programs.add_argument(
        "program", nargs="?", help="a name, NAME@VERSION or an id, for all but list"
    )
    programs.add_argument("--all", action="store_true", help="rm: with all versions of the name")


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("program", metavar="FILE.wasm|NAME[@VERSION]")
    run.add_argument("--input", default="", help="JSON, or any text, or @FILE")
    run.add_argument("--entry", help="the export to run")
    run.add_argument(
        "--limit", type=_limit, action="append", default=[], metavar="NAME=NUMBER",
        help="lower one of a run's limits (docs/reference/limits.md): wall_ms, cpu_ms, tokens, ...",
    )  # fmt: skip
    run.add_argument("--model", metavar="NAME", help="one of several; default: the server's first")
    run.add_argument("--priority", type=int, help="0 to 7; a step doubles the share; default 4")
    run.add_argument(
        "--trace", action="store_const", const=True, help="record it for `symphony trace`"
    )
    run.add_argument("--detach", action="store_true", help="only start it and print its id")
    run.add_argument("-i", "--interactive", action="store_true", help="stdin's lines are messages")
    run.add_argument("-l", "--lines", action="store_true", help="end each message with a newline")
    run.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show all of its log on stderr, not only errors",
    )
