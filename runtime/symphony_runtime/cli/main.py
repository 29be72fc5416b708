"""The command line: `symphony run`, `upload`, `runs`, ... (docs/http.md)."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from symphony_runtime.cli.admin import add_admin
from symphony_runtime.cli.kv import add_kv
from symphony_runtime.cli.output import (
    CommandError,
    RunOutput,
    first,
    print_json,
    print_listing,
    progress,
    time_of,
)
from symphony_runtime.client import Client, ClientError, Event, ServerError
from symphony_runtime.config.server_place import read_place, user_server_file

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
# As a shell reports an aborted or a killed process.
_EXIT_CODES = {"trapped": 134, "killed": 137, "failed": EXIT_FAILED}
_LEVELS = ("debug", "info", "warning", "error")
_ERROR = 3  # always shown: programs log why they failed
_LISTED_DEFAULT = 50
_READ_BYTES = 1 << 16
_Command = Callable[[Client, argparse.Namespace], Awaitable[int]]


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser(serves="serve" in arguments).parse_args(arguments)
    try:
        code: int = options.command(options)
    except (CommandError, ClientError) as error:
        return _complain(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `symphony runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code


def _complain(error: Exception) -> int:
    problems = error.problem.get("problems") if isinstance(error, ServerError) else None
    for words in problems or [str(error)]:
        print(f"symphony: {words}", file=sys.stderr)
    return EXIT_FAILED


# --- Commands that need no server ----------------------------------------------------------------
def _serve(options: argparse.Namespace) -> int:
    from symphony_runtime.cli.serve import serve
    from symphony_runtime.config.serve import OptionsError

    try:
        return serve(options)
    except OptionsError as error:
        raise CommandError(str(error)) from error


def _build(options: argparse.Namespace) -> int:
    from symphony_runtime.cli import projects

    try:
        print(projects.build(options.directory))
    except projects.ProjectError as error:
        raise CommandError(str(error)) from error
    return 0


def _new(options: argparse.Namespace) -> int:
    from symphony_runtime.cli import projects

    try:
        made = projects.new(options.name, options.lang, options.directory)
    except projects.ProjectError as error:
        raise CommandError(str(error)) from error
    print(f"{made}\nnext: symphony build {made}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from symphony_runtime.cli.doctor import examine

    url, _ = _place(options)
    checks = examine(options.model, url)
    if options.json:
        fields = ("name", "good", "needed", "words")
        print_json([{name: getattr(check, name) for name in fields} for check in checks])
    else:
        for check in checks:
            sign = "ok" if check.good else "MISSING" if check.needed else "no"
            print(f"{sign:8}{check.name:16}{check.words}")
    return 0 if all(check.good for check in checks if check.needed) else EXIT_FAILED


# --- Programs ------------------------------------------------------------------------------------
async def _upload(client: Client, options: argparse.Namespace) -> int:
    program = await client.upload(_read(options.file), options.name or options.file.stem)
    if options.json:
        print_json(program)
    else:
        print(f"{program['name']}  {program['id']}")
    return 0


async def _programs(client: Client, options: argparse.Namespace) -> int:
    if options.action == "rm":
        if options.program is None:
            raise CommandError("which program? symphony programs rm NAME")
        await client.delete_program(options.program)
        return 0
    programs = await first(client.programs(), options.limit)
    print_listing(
        options,
        programs,
        {
            "NAME": lambda program: program["name"] or "-",
            "ID": lambda program: program["id"][:19],
            "BYTES": "size",
            "ENTRIES": lambda program: ",".join(program["entries"]),
            "UPLOADED": time_of("created_ms"),
        },
    )
    return 0


# --- Runs ----------------------------------------------------------------------------------------
async def _run(client: Client, options: argparse.Namespace) -> int:
    program = options.program
    if (path := _program_file(program)) is not None:
        with progress(f"checking and compiling {path.name}"):
            program = (await client.upload(_read(path), path.stem))["id"]
    wanted: dict[str, Any] = {"input": _input(options.input), "limits": dict(options.limit)}
    given = {name: getattr(options, name) for name in ("entry", "priority", "trace")}
    wanted |= {name: value for name, value in given.items() if value is not None}
    with progress(f"starting {options.program}"):
        run = await client.start(program, **wanted)
    if options.detach:
        print(json.dumps({"id": run}) if options.json else run)
        return 0
    return await _follow_run(client, run, options)


async def _follow_run(client: Client, run: str, options: argparse.Namespace) -> int:
    """Show a run until it ends; Ctrl-C cancels it."""
    if options.json:
        print(json.dumps({"id": 0, "event": "run", "run": run}), flush=True)
    loop = asyncio.get_running_loop()
    following = asyncio.create_task(_show_events(client.events(run), options))
    loop.add_signal_handler(signal.SIGINT, following.cancel)
    sending = asyncio.create_task(_send_stdin(client, run, options.interactive))
    try:
        return await following
    except asyncio.CancelledError:
        await client.cancel(run)
        return EXIT_INTERRUPTED
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        sending.cancel()
        await asyncio.wait([sending])
        if not sending.cancelled() and (error := sending.exception()) is not None:
            print(f"symphony: a message was not sent: {error}", file=sys.stderr)


async def _send_stdin(client: Client, run: str, interactive: bool) -> None:
    """Send the lines of stdin as messages, if asked to; then close the input."""
    try:
        if interactive:
            async for line in _stdin_lines():
                await _send(client, run, line)
        await _send(client, run, b"", close=True)
    except ServerError as error:
        if error.status != 409:  # the run has ended: nothing reads it
            raise


async def _send(client: Client, run: str, message: bytes, *, close: bool = False) -> None:
    """Send a message; wait while the program's inbox is full."""
    while True:
        try:
            return await client.send(run, message, close=close)
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


async def _show_events(events: AsyncIterator[Event], options: argparse.Namespace) -> int:
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
            elif event.kind == "log" and (options.verbose or event.data["level"] == _ERROR):
                output.note(_log_line(event))
            elif event.kind == "status" and event.data["status"] in _EXIT_CODES:
                output.note(f"symphony: the run {_ended_words(event.data)}")
    finally:
        output.end_line()
    return code


def _exit_code(status: dict[str, Any]) -> int:
    if status["status"] == "exited":
        return int(status["exit_code"] or 0) & 0xFF
    return _EXIT_CODES.get(status["status"], EXIT_FAILED)


def _ended_words(run: dict[str, Any]) -> str:
    verb = {"trapped": "trapped", "killed": "was killed", "failed": "failed"}[run["status"]]
    return f"{verb}: {run['reason']}"


async def _runs(client: Client, options: argparse.Namespace) -> int:
    runs = await first(client.runs(), options.limit)
    print_listing(
        options,
        runs,
        {
            "ID": "id",
            "PROGRAM": lambda run: run["program_name"] or run["program"][:19],
            "STATUS": _state,
            "TOKENS": lambda run: (run["usage"] or {}).get("completion_tokens", ""),
            "BEGUN": time_of("created_ms"),
            "REASON": "reason",
        },
    )
    return 0


def _state(run: dict[str, Any]) -> str:
    code = run["exit_code"]
    return str(run["status"]) if code is None else f"{run['status']} {code}"


async def _top(client: Client, options: argparse.Namespace) -> int:
    from symphony_runtime.cli.top import show

    return await show(client, as_json=options.json)


async def _logs(client: Client, options: argparse.Namespace) -> int:
    async for event in client.events(options.run, follow=options.follow):
        if event.kind == "log":
            print(json.dumps(event.data) if options.json else _log_line(event), flush=True)
    return 0


async def _trace(client: Client, options: argparse.Namespace) -> int:
    trace = await client.trace(options.run)
    text = json.dumps(trace, ensure_ascii=False, separators=(",", ":")) + "\n"
    if options.output is None:
        sys.stdout.write(text)
        return 0
    try:
        options.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{options.output}: {error.strerror}") from error
    spans = sum(event["ph"] == "X" for event in trace["traceEvents"])
    print(f"{options.output}: {spans} spans; https://ui.perfetto.dev shows them", file=sys.stderr)
    return 0


async def _cancel(client: Client, options: argparse.Namespace) -> int:
    run = await client.cancel(options.run)
    if options.json:
        print_json(run)
    else:
        print(run["status"], run["reason"])
    return 0


def _log_line(event: Event) -> str:
    return f"{_LEVELS[event.data['level']]}: {event.data['text']}"


# --- Helpers -------------------------------------------------------------------------------------
def _with_server(command: _Command) -> Callable[[argparse.Namespace], int]:
    """Return the command as `main` calls it, with a client of the chosen server."""

    async def call(options: argparse.Namespace) -> int:
        url, key = _place(options)
        if url is None:
            raise CommandError(
                "no server is known: start one with `symphony serve`, or name one with --server "
                "or SYMPHONY_SERVER"
            )
        async with Client(url, key) as client:
            return await command(client, options)

    return lambda options: asyncio.run(call(options))


def _place(options: argparse.Namespace) -> tuple[str | None, str | None]:
    """Return the server's address and the key, from options, environment and local files."""
    local = read_place(user_server_file())
    url = options.server or os.environ.get("SYMPHONY_SERVER") or (local.url if local else None)
    if url is not None and not url.startswith(("http://", "https://")):
        raise CommandError(f"{url} is not a server's address like http://127.0.0.1:8700")
    operator = getattr(options, "operator", False)
    key = options.key or os.environ.get("SYMPHONY_ADMIN_KEY" if operator else "SYMPHONY_KEY")
    # The local server's key is never sent to another server.
    if not key and local is not None and url is not None and url.rstrip("/") == local.url:
        with contextlib.suppress(OSError):
            file = local.key_file.with_name("admin.key") if operator else local.key_file
            key = file.read_text(encoding="utf-8").strip()
    return url, key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error


def _program_file(program: str) -> Path | None:
    path = Path(program)
    return path if path.suffix == ".wasm" or path.is_file() else None


def _input(text: str) -> Any:
    """Return the value of --input: JSON, else the text; @FILE is the file's text."""
    if text.startswith("@"):
        return _read(Path(text[1:])).decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _limit(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name or not value.isdigit():
        raise argparse.ArgumentTypeError("a limit is NAME=NUMBER, for example wall_ms=1000")
    return name, int(value)


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a number of at least 1; it is {text!r}")
    return int(text)


def _version() -> str:
    try:
        return version("symphony-lip")
    except PackageNotFoundError:  # run from a source tree
        return "0"


# --- Arguments -----------------------------------------------------------------------------------
def _parser(*, serves: bool) -> argparse.ArgumentParser:
    """Return the parser; only with `serves` the flags of `serve`, whose model takes 70 ms."""
    parser = argparse.ArgumentParser(
        prog="symphony", description="An LLM serving system that serves programs."
    )
    parser.add_argument("--version", action="version", version=f"symphony {_version()}")
    server = argparse.ArgumentParser(add_help=False)
    server.add_argument("--server", help="its address (else SYMPHONY_SERVER, else the local one)")
    server.add_argument("--key", help="a tenant's key (else SYMPHONY_KEY, else the local one's)")
    listing = argparse.ArgumentParser(add_help=False)
    listing.add_argument("--json", action="store_true", help="print JSON")
    limited = argparse.ArgumentParser(add_help=False)
    limited.add_argument(
        "--limit", type=_count, default=_LISTED_DEFAULT, help="show at most this many"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(
        name: str, words: str, action: Callable[[argparse.Namespace], int], *parents: Any
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=words, description=words, parents=parents)
        command.set_defaults(command=action)
        return command

    serve = add("serve", "start the server", _serve)
    if serves:
        from symphony_runtime.cli.serve import add_serve

        add_serve(serve)
    _add_run(add("run", "run a program and show its messages", _with_server(_run), server, listing))
    upload = add("upload", "upload a program", _with_server(_upload), server, listing)
    upload.add_argument("file", type=Path, metavar="FILE.wasm")
    upload.add_argument("--name", help="its name (else the file's)")
    programs = add(
        "programs",
        "list programs, or remove one",
        _with_server(_programs),
        server,
        listing,
        limited,
    )
    programs.add_argument("action", nargs="?", choices=("list", "rm"), default="list")
    programs.add_argument("program", nargs="?", help="name or id, for rm")
    add("runs", "list runs, newest first", _with_server(_runs), server, listing, limited)
    add("top", "show the load of the server, once a second", _with_server(_top), server, listing)
    logs = add("logs", "show the log of a run", _with_server(_logs), server, listing)
    logs.add_argument("run")
    logs.add_argument("-f", "--follow", action="store_true", help="until the run ends")
    trace = add("trace", "save the trace of a run, for Perfetto", _with_server(_trace), server)
    trace.add_argument("run", help="of `symphony run --trace`")
    trace.add_argument("-o", "--output", type=Path, help="else stdout")
    cancel = add("cancel", "end a run", _with_server(_cancel), server, listing)
    cancel.add_argument("run")
    parents = {"server": server, "listing": listing, "limited": limited}
    add_kv(commands, _with_server, parents)
    add_admin(commands, _with_server, parents)
    build = add("build", "compile a program's project", _build)
    build.add_argument("directory", type=Path, nargs="?", default=Path())
    new = add("new", "create a project for a program", _new)
    new.add_argument("name")
    new.add_argument("--lang", choices=("rust", "assemblyscript"), default="rust")
    new.add_argument("--directory", type=Path, default=Path(), help="where to create its folder")
    doctor = add("doctor", "check what this machine has and lacks", _doctor, server, listing)
    doctor.add_argument("--model", default="tiny")
    return parser


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("program", metavar="FILE.wasm|NAME")
    run.add_argument("--input", default="", help="JSON, or any text, or @FILE")
    run.add_argument("--entry", help="the export to run")
    run.add_argument(
        "--limit", type=_limit, action="append", default=[], metavar="NAME=NUMBER",
        help="lower one of a run's limits (docs/limits.md): wall_ms, cpu_ms, tokens, ...",
    )  # fmt: skip
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


if __name__ == "__main__":
    sys.exit(main())
