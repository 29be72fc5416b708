"""A source program and a file of tests become one source, whose lines are told apart again."""

import pytest
from symphony_runtime.cli.development.source_tests import name_places, with_tests
from symphony_runtime.cli.output import CommandError

JS = 'import { Session } from "symphony";\nexport default async (input) => 1;\n'
PY = "import symphony\n\n@symphony.program\ndef main():\n    return 1"


def javascript(program: str, tests: str) -> list[str]:
    return with_tests("javascript", program, tests, "tests/a.js").source.split("\n")


def test_tests_of_javascript_see_the_program_and_keep_their_lines() -> None:
    tests = (
        'import {\n  Session, send,\n} from "symphony";\n'
        'import { expect } from "symphony/testing";\n'
        'import main, { best } from "../main.js";\nexport async function test_a() {}\n'
        "export function test_b() {}\nfunction other() {}\n"
    )
    made = with_tests("javascript", JS, tests, "tests/a.js")
    assert made.names == ("test_a", "test_b")
    lines = made.source.split("\n")
    assert lines[made.program_lines + 5] == "export async function test_a() {}"
    assert lines[:3] == [
        'import { Session } from "symphony";',
        "const main = async (input) => 1;",
        'import { send } from "symphony";',
    ]
    assert lines[-3].startswith("function expect(")
    assert "{ test_a, test_b }[test]()" in lines[-2]
    assert made.source.count("export default") == 1


def test_default_export_has_the_name_that_tests_give_it() -> None:
    import_ = 'import run from "../main.js";'
    assert "const run = program;" in javascript("export default function program() {}", import_)
    assert "const main = () => 1;" in javascript("export default () => 1;", "")
    assert "async function main() {}" in javascript("export default async function main() {}", "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('import { same } from "symphony/testing";', "expectThrows, and no same"),
        ('import fs from "node:fs";', "and not from node:fs"),
    ],
)
def test_import_of_what_is_not_there_is_an_error(line: str, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        javascript(JS, line)


def test_tests_of_python_see_the_program_and_keep_their_lines() -> None:
    tests = (
        "from main import (\n    main,\n)\nfrom symphony import model\n\ndef test_a():\n  pass\n"
    )
    made = with_tests("python", PY, tests, "tests/a.py")
    assert (made.names, made.program_lines) == (("test_a",), 5)
    lines = made.source.split("\n")
    assert lines[5:11] == ["", "", "", "from symphony import model", "", "def test_a():"]
    assert made.source.count("@symphony.program") == 2


@pytest.mark.parametrize(
    ("language", "program", "kept"),
    [
        (
            "javascript",
            '/* symphony: {"permissions": ["tool"],\n "input_schema": {"required": ["a"]}} */\n',
            '/* symphony: {"permissions": ["tool"]}\n */\n',
        ),
        (
            "python",
            '# symphony: {"description": "d",\n#  "permissions": ["http"]}\nimport a\n',
            '# symphony: {"permissions": ["http"]}\n#\nimport a\n',
        ),
        ("python", "import a\n# symphony: {}\n", "import a\n# symphony: {}\n"),
        ("python", "# symphony: {wrong\n", "# symphony: {wrong\n"),
    ],
)
def test_of_the_manifest_only_permissions_hold_for_tests(
    language: str, program: str, kept: str
) -> None:
    assert with_tests(language, program, "", "t").source.startswith(kept)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("at f (program.js:3)\n at g (program.js:12)", "at f (main.js:3)\n at g (tests/t:2)"),
        ('File "main.py", line 12, in f', 'File "tests/t", line 2, in f'),
        ("line 11, column 4: expected ;", "tests/t:1:4: expected ;"),
        ("line 9: SyntaxError", "main.js:9: SyntaxError"),
        ("on line 9: it", "on line 9: it"),
    ],
)
def test_places_are_named_by_their_files(words: str, named: str) -> None:
    assert name_places(words, "main.js", "tests/t", 10) == named
    assert name_places("program.js:12", "main.js") == "main.js:12"
