"""The AssemblyScript SDK without a server: declarations, package, strings, MessagePack, JSON."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from symphony_kernel.protocol.errno import Errno
from wasmtime import Engine, Func, FuncType, Instance, Memory, Module, Store, Trap, ValType

from tests.support.assemblyscript import ROOT, SDK, compiled
from tests.support.json_values import close

TABLE = tomllib.loads((ROOT / "runtime/symphony_runtime/abi/table.toml").read_text())

DECLARATION = re.compile(
    r'@external\("(\w+)", "(\w+)"\)\nexport declare function (\w+)\(([^)]*)\): (\w+);'
)
WASM_TYPES = {"usize": "i32", "u32": "i32", "i32": "i32", "i64": "i64", "void": ""}


# --- The package ---------------------------------------------------------------------------------


def test_declarations_match_the_abi_table() -> None:
    declared = {}
    for module, name, function, parameters, result in DECLARATION.findall(
        (SDK / "assembly" / "raw.ts").read_text()
    ):
        assert (module, name) == ("lip", function)
        pairs = [p.strip().split(": ") for p in parameters.split(",") if p.strip()]
        declared[name] = (
            [f"{name}: {WASM_TYPES[kind]}" for name, kind in pairs],
            WASM_TYPES[result],
        )
    assert declared == {call["name"]: (call["params"], call["result"]) for call in TABLE["call"]}


def constants(source: str, header: str) -> dict[str, int]:
    body = source.split(header, 1)[1].split("\n}", 1)[0]
    return {name: int(value) for name, value in re.findall(r"(\w+)(?:: u32)? = (\d+)[,;]", body)}


def test_numbers_match_the_abi_table() -> None:
    errors, kv = (SDK / "assembly" / f"{name}.ts" for name in ("errno", "kv"))
    assert constants(errors.read_text(), "enum Errno {") == {"OK": 0, **TABLE["errno"]}
    rights = constants(kv.read_text(), "namespace Rights {")
    assert rights.pop("ALL") == sum(TABLE["rights"].values())
    assert {name[0]: value for name, value in rights.items()} == TABLE["rights"]
    assert constants(kv.read_text(), "namespace SaveFlags {") == TABLE["save_flags"]
    assert constants(kv.read_text(), "enum Advice {") == TABLE["advice"]


def test_errno_descriptions_are_complete() -> None:
    words = (SDK / "assembly" / "errno.ts").read_text()
    assert {name for name in Errno.__members__ if f'return "{name}, ' not in words} == set()


def test_every_try_form_stands_next_to_the_form_that_ends_the_run() -> None:
    found = 0
    for source in (SDK / "assembly").glob("*.ts"):
        text = source.read_text()
        for name in re.findall(r"^(?:export function |  (?:static )?)try([A-Z]\w+)\(", text, re.M):
            form = name[0].lower() + name[1:]
            assert re.search(rf"^(?:export function |  (?:static )?){form}\(", text, re.M), name
            found += 1
    assert found > 30


def test_lock_file_pins_the_compiler_and_names_no_host() -> None:
    text = (SDK / "package-lock.json").read_text()
    lock = json.loads(text)
    manifest = json.loads((SDK / "package.json").read_text())
    compiler = manifest["devDependencies"]["assemblyscript"]
    assert re.fullmatch(r"0\.28\.\d+", compiler)
    assert lock["packages"]["node_modules/assemblyscript"]["version"] == compiler
    assert "://" not in text


def test_package_holds_what_its_manifest_exports() -> None:
    manifest = json.loads((SDK / "package.json").read_text())
    packed = subprocess.run(
        ["npm", "pack", "--dry-run", "--json"], cwd=SDK, capture_output=True, text=True, check=True
    )
    files = {entry["path"] for entry in json.loads(packed.stdout)[0]["files"]}
    exported = [path.removeprefix("./") for path in manifest["exports"].values() if "*" not in path]
    assert {*exported, manifest["ascMain"], "README.md", "assembly/raw.ts"} <= files
    assert not any(path.startswith(("tests/", "node_modules/")) for path in files)


# --- What runs inside the guest ------------------------------------------------------------------


class Helpers:
    """An instance of tests/helpers.ts; one for all examples, so that its collector runs too."""

    def __init__(self, wasm: Path) -> None:
        self.store = Store(Engine())
        module = Module(self.store.engine, wasm.read_bytes())
        self.words = ""
        kind = FuncType([ValType.i32()] * 4, [])
        self.instance = Instance(self.store, module, [Func(self.store, kind, self.abort)])
        self.exports = self.instance.exports(self.store)
        self.call("_initialize")

    def abort(self, message: int, *_place: int) -> None:
        length = int.from_bytes(self.read(message - 4, 4), "little")
        self.words = self.read(message, length).decode("utf-16-le")

    def call(self, name: str, *arguments: int) -> int:
        function = self.exports[name]
        assert isinstance(function, Func)
        result = function(self.store, *arguments)
        return result if isinstance(result, int) else 0

    @property
    def memory(self) -> Memory:
        memory = self.exports["memory"]
        assert isinstance(memory, Memory)
        return memory

    def read(self, start: int, length: int) -> bytes:
        return bytes(self.memory.read(self.store, start, start + length))

    def ask(self, name: str, data: bytes, *more: int) -> bytes | None:
        """Give `data` to a helper; its answer, or None where the SDK refuses."""
        at = self.call("room", max(1, len(data)))
        self.memory.write(self.store, data, at)
        length = self.call(name, at, len(data), *more)
        self.call("release", at)
        return None if length < 0 else self.read(self.call("answer"), length)


@pytest.fixture(scope="module")
def wasm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("helpers") / "helpers.wasm"
    compiled("tests/helpers.ts", target)
    return target


@pytest.fixture(scope="module")
def helpers(wasm: Path) -> Helpers:
    return Helpers(wasm)


def answered(answer: bytes | None) -> bytes:
    assert answer is not None
    return answer


@given(st.binary(max_size=64) | st.text().map(str.encode))
def test_utf8_is_decoded_as_in_python(helpers: Helpers, data: bytes) -> None:
    text = answered(helpers.ask("utf8_decode", data)).decode("utf-16-le")
    assert text == data.decode("utf-8", "replace")


BROKEN = bytes.fromhex("80 c0af7c e080af7c eda0807c f080807c f4908080 f57c e2827c f09f98")


@pytest.mark.parametrize("piece", [1, 2, 3, 5])
@given(data=st.text().map(str.encode) | st.binary(max_size=40) | st.just(BROKEN))
def test_utf8_in_pieces_decodes_as_the_whole(helpers: Helpers, piece: int, data: bytes) -> None:
    text = answered(helpers.ask("utf8_pieces", data, piece)).decode("utf-16-le")
    assert text == data.decode("utf-8", "replace")


@given(st.text(st.characters(codec=None, exclude_categories=[])))
def test_utf8_is_encoded_as_in_python(helpers: Helpers, text: str) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    expected = units.decode("utf-16-le", "replace").encode()
    assert helpers.ask("utf8_encode", units) == expected


VALUES = {
    0: st.integers(-(2**63), 2**63 - 1),
    1: st.integers(0, 2**64 - 1),
    2: st.floats(allow_nan=False),
    3: st.text() | st.integers(0, 70_000).map("x".__mul__),
    4: st.binary() | st.integers(0, 70_000).map(b"y".__mul__),
    5: st.booleans(),
    6: st.lists(st.integers(-(2**63), 2**63 - 1)) | st.integers(0, 300).map([1].__mul__),
    7: st.dictionaries(st.text(), st.integers(-5, 5)),
    8: st.none(),
}


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_msgpack_equals_pythons(helpers: Helpers, kind: int, data: st.DataObject) -> None:
    packed = msgpack.packb(data.draw(VALUES[kind]))
    assert helpers.ask("msgpack_again", packed, kind) == packed


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_msgpack_damaged_is_refused(helpers: Helpers, kind: int, data: st.DataObject) -> None:
    packed = msgpack.packb(data.draw(VALUES[kind]))
    assert helpers.ask("msgpack_again", packed[:-1], kind) is None
    assert helpers.ask("msgpack_again", packed + b"\xc0", kind) is None


@given(st.binary(max_size=40), st.sampled_from(list(VALUES)))
def test_msgpack_of_any_bytes_is_read_or_refused(helpers: Helpers, data: bytes, kind: int) -> None:
    helpers.ask("msgpack_again", data, kind)
    helpers.ask("msgpack_skip", data)


def test_msgpack_integers_beyond_64_bits_are_refused(helpers: Helpers) -> None:
    assert helpers.ask("msgpack_again", msgpack.packb(2**63), 0) is None
    assert helpers.ask("msgpack_again", msgpack.packb(-1), 1) is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(st.lists(ANYTHING))
def test_msgpack_skip_passes_over_one_value(helpers: Helpers, values: list[object]) -> None:
    packed = b"".join(msgpack.packb(value) for value in values)
    # The helper answers with a count where it answers others with a length.
    at = helpers.call("room", max(1, len(packed)))
    helpers.memory.write(helpers.store, packed, at)
    assert helpers.call("msgpack_skip", at, len(packed)) == len(values)
    helpers.call("release", at)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53)
    | st.floats(-1e300, 1e300, allow_subnormal=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN, st.booleans(), st.sampled_from([None, 1]))
@example(3.2357486198741123e47, False, None)
@example([1e308, -5e-324, 1e22, 1e23, 0.1, 2.2250738585072014e-308], False, None)
def test_json_equals_pythons(
    helpers: Helpers, value: object, ascii_only: bool, indent: int
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    again = json.loads(answered(helpers.ask("json_again", text.encode())))
    assert close(value, again)


@given(st.text())
def test_json_quoted_text_is_valid(helpers: Helpers, text: str) -> None:
    assert json.loads(answered(helpers.ask("json_quote", text.encode()))) == text


MALFORMED = [
    "", " ", "{", "[", "]", "[1", "[1,", "[1,]", "[1 2]", '{"a"', '{"a":', '{"a":1', '{"a":1,}',
    "{a:1}", "{1:1}", '{"a" 1}', "tru", "nul", "truex", "1 2", "01", "-", "1.", ".5", "1e", "1e+",
    "+1", "0x1", "NaN", "Infinity", '"', '"a', '"\\', '"\\x"', '"\\u12"', '"\\u12g4"', '"\n"',
    "'a'", '"a" "b"', "[" * 70 + "]" * 70, "garbage", "\u00a01",
]  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED)
def test_json_invalid_is_refused(helpers: Helpers, text: str) -> None:
    assert helpers.ask("json_again", text.encode()) is None


@given(st.text(alphabet='{}[]",:\\u0123eE+-. \ntruefalsn', max_size=12))
def test_json_accepts_what_python_accepts(helpers: Helpers, text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    except ValueError:
        assert helpers.ask("json_again", text.encode()) is None
        return
    assert close(expected, json.loads(answered(helpers.ask("json_again", text.encode()))))


def test_json_typed_reading_checks_types(helpers: Helpers) -> None:
    text = '{"list": ["a", "b"], "whole": 12, "text": "x\\u00e9\\ud83d\\ude00", "other": {}}'
    assert helpers.ask("json_typed", text.encode()) == "xé😀|12|a,b".encode()
    assert helpers.ask("json_typed", b'{"list": [], "text": ""}') == b"|7|"


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{a}{a}-{b}-{", "11-{b}-{"),
        ("{ {a} }}{{a}}", "{ 1 }}{1}"),
        ("{é}: {c}", "😀: {a}"),
        ("", ""),
    ],
)
def test_template_is_filled_once(helpers: Helpers, template: str, filled: str) -> None:
    given = {"template": template, "names": ["a", "c", "é"], "texts": ["1", "{a}", "😀"]}
    assert answered(helpers.ask("filled", json.dumps(given).encode())).decode() == filled


def test_json_objects_are_written(helpers: Helpers) -> None:
    given = {"text": 'a "b"\n', "whole": -7, "number": 1.5e-9, "flag": True, "list": ["1", "2"]}
    written = json.loads(answered(helpers.ask("object_again", json.dumps(given).encode())))
    assert written == given | {"list": [1, 2], "none": None}


WRONG = [
    ('{"list": []}', 'JSON: there is no "text"'),
    ('{"text": 5, "list": []}', "JSON: expected a string, found a number"),
    ('{"text": "", "list": "a"}', "JSON: expected an array, found a string"),
    ('{"text": "", "list": [1]}', "JSON: expected a string, found a number"),
    ('{"text": "", "list": [], "whole": 1.5}', "JSON: expected a whole number, found 1.5"),
    ('{"text": "", "list": [], "whole": 1e17}', "JSON: expected a whole number, found "),
    ('{"text": "", "list": [], "whole": null}', "JSON: expected a number, found null"),
    ("[]", "JSON: expected an object, found an array"),
    ('{"text": "a', "JSON: expected the end of a string at character 11"),
    ('{"text" "a"}', "JSON: expected ':' at character 8"),
]


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_json_mistake_in_the_input_ends_the_run_with_its_place(
    wasm: Path, text: str, words: str
) -> None:
    helpers = Helpers(wasm)
    with pytest.raises(Trap):
        helpers.ask("json_typed", text.encode())
    assert helpers.words.startswith(words)
