"""The manifest of a module: read from its section, and put into it."""

import json
from typing import Any

import pytest
from symphony_kernel.protocol.limits import PROGRAM_MANIFEST_BYTES_MAX
from symphony_runtime.compiler.compiler import ProgramError, compile_program
from symphony_runtime.compiler.manifest import check_manifest, read_manifest, with_manifest

from tests.e2e import programs as guests

MANIFEST = {
    "description": "Adds é.\n",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "output_schema": {"type": "integer"},
}


def test_manifest_is_read_from_the_section_that_was_written() -> None:
    made = with_manifest(guests.HELLO_WASM, json.dumps(MANIFEST, indent=2).encode())
    text, problems = read_manifest(made)
    assert (json.loads(text), problems) == (MANIFEST, [])
    assert read_manifest(guests.HELLO_WASM) == ("", [])
    assert made.startswith(guests.HELLO_WASM)


def test_manifest_replaces_the_earlier_one_and_nothing_else() -> None:
    once = with_manifest(guests.HELLO_WASM, b'{"description":"one"}')
    twice = with_manifest(once, b'{"description":"two"}')
    assert read_manifest(twice)[0] == '{"description":"two"}'
    assert twice == with_manifest(guests.HELLO_WASM, b'{"description":"two"}')
    with pytest.raises(ValueError, match="not a WebAssembly module"):
        with_manifest(b"text", b"{}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff", "the manifest is not JSON"),
        (b"{", "the manifest is not JSON"),
        (b"[" * 9000, "the manifest nests its lists and objects more than"),
        (b'{"description": 1e999}', "the manifest is not JSON"),
        (b'{"description": NaN}', "the manifest is not JSON"),
        (b'{"description": "\\ud800"}', "the manifest is not JSON"),
        (b"[]", "the manifest must be an object"),
        (b'{"descripton": "x"}', "the manifest: `descripton` is unknown; there are description"),
        (b'{"description": 1}', "the manifest: `description` must be a string"),
        (b'{"input_schema": true}', "the manifest: `input_schema` must be an object"),
        (b'{"output_schema": {"type": "x"}}', "the manifest: `output_schema/type` must be one of"),
        (b" " * (PROGRAM_MANIFEST_BYTES_MAX + 1), "the manifest has"),
    ],
)
def test_problem_of_a_manifest_says_what_is_wrong(content: bytes, problem: str) -> None:
    text, (found, *_) = check_manifest(content)
    assert text == ""
    assert found.startswith(problem)


def test_problems_of_a_manifest_are_bounded_in_number() -> None:
    many: dict[str, Any] = {f"k{n}": 1 for n in range(1000)}
    assert len(check_manifest(json.dumps(many).encode())[1]) == 10


async def test_compiler_returns_the_manifest_or_refuses_it() -> None:
    made = with_manifest(guests.HELLO_WASM, json.dumps(MANIFEST).encode())
    compiled = await compile_program(made)
    assert json.loads(compiled.manifest.declared) == MANIFEST
    assert (await compile_program(guests.HELLO_WASM)).manifest.declared == ""
    with pytest.raises(ProgramError) as refused:
        await compile_program(with_manifest(guests.HELLO_WASM, b'{"input_schema":{"if":{}}}'))
    (problem,) = refused.value.problems
    assert problem.startswith("the manifest: `input_schema/if` is not a keyword")
