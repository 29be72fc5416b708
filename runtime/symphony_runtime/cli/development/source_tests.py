"""Tests of source programs, as one source each that a server can run.

A source program is one file. So a file of tests is put behind the program's own lines, sees what is
there, and needs no import: the lines that import from the program are blanked, as are those of
`symphony/testing`, whose functions come last. The run's input names the test.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

from symphony_runtime.cli.output import CommandError
from symphony_runtime.compiler.manifest import PERMISSIONS
from symphony_runtime.languages.language import SHIPPED
from symphony_runtime.languages.source import find_manifest

TEST: Final = "test_"  # begins the names of tests
_NAMES: Final = {
    "javascript": re.compile(rf"^export\s+(?:async\s+)?function\s+({TEST}\w+)", re.MULTILINE),
    "python": re.compile(rf"^(?:async\s+)?def\s+({TEST}\w+)", re.MULTILINE),
}
_MANIFEST: Final = {
    "javascript": re.compile(r"/\*\s*symphony:.*?\*/", re.DOTALL),
    "python": re.compile(r"^[ \t]*#[ \t]*symphony:.*(?:\n[ \t]*#.*)*", re.MULTILINE),
}
_JS_IMPORT: Final = re.compile(
    r"^import\s+([^;\"']*?)\s+from\s+[\"']([^\"']+)[\"'];?", re.MULTILINE
)
_JS_NAMED_DEFAULT: Final = re.compile(
    r"^export\s+default\s+(?=(?:async\s+)?(?:function\b\s*\*?|class)\s+(\w+))", re.MULTILINE
)
_JS_DEFAULT: Final = re.compile(r"^export\s+default\b", re.MULTILINE)
_PY_IMPORT: Final = re.compile(r"^from\s+main\s+import\s+(?:\([^)]*\)|.*)$", re.MULTILINE)
# How the language modules name a line of the source that they run, or refuse.
_JS_PLACE: Final = re.compile(r"program\.js:(\d+)")
_PY_PLACE: Final = re.compile(r'File "main\.py", line (\d+)')
_REFUSED: Final = re.compile(r"^line (\d+)(?:, column (\d+))?: ")
# What tests of JavaScript import from "symphony/testing". Each is one line.
_JS_HELPERS: Final = {
    "expect": 'function expect(holds, words = "an expectation does not hold") '
    "{ if (!holds) throw new Error(String(words)); }",
    "expectEqual": "function expectEqual(actual, expected) "
    "{ const [a, e] = [actual, expected].map((each) => JSON.stringify(each)); "
    "if (a !== e) throw new Error(`expected ${e}, got ${a}`); }",
    "expectThrows": 'async function expectThrows(work, words = "") '
    "{ let said; try { await work(); } catch (error) { said = String(error); } "
    'if (said === undefined) throw new Error("expected an error"); '
    "if (!said.includes(words)) throw new Error(`expected ${JSON.stringify(words)} in ${said}`); }",
}
_PY_RUNNER: Final = """
import symphony
symphony._program = None
@symphony.program
async def _run_test(test):
    _done = globals()[test]()
    if hasattr(_done, "send"): await _done
"""


@dataclass(frozen=True, slots=True)
class SourceTests:
    """A program with the tests of one file: its source, their names, and the lines before them."""

    source: str
    names: tuple[str, ...]
    program_lines: int


def with_tests(language: str, program: str, tests: str, path: str) -> SourceTests:
    """Return a program's source with the tests of the file `path` behind it.

    Raises CommandError: a test imports what is not there.
    """
    names = tuple(_NAMES[language].findall(tests))
    program = _without_schemas(language, program if program.endswith("\n") else program + "\n")
    if language == "javascript":
        source = _javascript(program, tests, names, path)
    else:
        source = program + _PY_IMPORT.sub(_blank, tests) + _PY_RUNNER
    return SourceTests(source, names, program.count("\n"))


def _without_schemas(language: str, program: str) -> str:
    """Return a program whose manifest is its permissions alone: a test's input is another."""
    comment = next(each.comment for each in SHIPPED if each.name == language)
    try:
        manifest = json.loads(find_manifest(program.encode(), comment))
    except ValueError:  # none, or one that the server refuses
        return program
    kept = json.dumps({name: manifest[name] for name in (PERMISSIONS,) if name in manifest})

    def replaced(found: "re.Match[str]") -> str:
        lines = f"\n{comment}" * found[0].count("\n")
        return f"# symphony: {kept}{lines}" if comment else f"/* symphony: {kept}{lines} */"

    return _MANIFEST[language].sub(replaced, program, count=1)


def _javascript(program: str, tests: str, names: tuple[str, ...], path: str) -> str:
    known = {
        name
        for names_, module in _JS_IMPORT.findall(program)
        if module == "symphony"
        for name in _imported(names_)
    }
    helpers: dict[str, str] = {}
    named = _JS_NAMED_DEFAULT.search(program)
    default = named[1] if named else "main"

    def replaced(found: "re.Match[str]") -> str:
        wanted, module = _imported(found[1]), found[2]
        if module == "symphony":
            left = ", ".join(name for name in wanted if name not in known)
            return (f'import {{ {left} }} from "symphony";' if left else "") + _blank(found)
        if module == "symphony/testing":
            if unknown := [name for name in wanted if name not in _JS_HELPERS]:
                has = ", ".join(_JS_HELPERS)
                raise CommandError(f"{path}: symphony/testing has {has}, and no {unknown[0]}")
            helpers.update((name, _JS_HELPERS[name]) for name in wanted)
        elif module not in ("../main.js", "../main.mjs"):
            raise CommandError(
                f"{path}: tests import from ../main.js, symphony and symphony/testing, "
                f"and not from {module}"
            )
        elif (name := found[1].partition("{")[0].strip(", \n")) and name != default:
            return f"const {name} = {default};{_blank(found)}"
        return _blank(found)

    tests = _JS_IMPORT.sub(replaced, tests)
    program = _JS_DEFAULT.sub(f"const {default} =", _JS_NAMED_DEFAULT.sub("", program))
    runner = f"export default async ({{ test }}) => void (await {{ {', '.join(names)} }}[test]());"
    return "\n".join([program + tests, *helpers.values(), runner, ""])


def _imported(names: str) -> list[str]:
    """Return the names between an import's braces."""
    _, _, named = names.partition("{")
    return [name.strip() for name in named.rstrip("} \n").split(",") if name.strip()]


def _blank(found: "re.Match[str]") -> str:
    return "\n" * found[0].count("\n")


def name_places(words: str, program: str, tests: str = "", program_lines: int = 0) -> str:
    """Return words about a source, with the files that its lines are from.

    `program` is the program's file, `tests` the one whose lines follow behind so many of it.
    """

    def place(line: str) -> tuple[str, int]:
        behind = tests and int(line) > program_lines
        return (tests, int(line) - program_lines) if behind else (program, int(line))

    words = _JS_PLACE.sub(lambda found: "{}:{}".format(*place(found[1])), words)
    words = _PY_PLACE.sub(lambda found: 'File "{}", line {}'.format(*place(found[1])), words)
    return _REFUSED.sub(
        lambda found: "{}:{}{}: ".format(*place(found[1]), f":{found[2]}" if found[2] else ""),
        words,
    )
