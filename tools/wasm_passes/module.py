"""A Wasm module as the passes see it: sections, types, names, and the bodies of its functions."""

from collections.abc import Iterator
from dataclasses import dataclass

I32, I64, F32, F64 = 0x7F, 0x7E, 0x7D, 0x7C
BLOCK, LOOP, IF, ELSE, END = 0x02, 0x03, 0x04, 0x05, 0x0B
BR, BR_IF, BR_TABLE, RETURN, UNREACHABLE = 0x0C, 0x0D, 0x0E, 0x0F, 0x00
CALL, CALL_INDIRECT = 0x10, 0x11
LOCAL_GET, LOCAL_SET, LOCAL_TEE, GLOBAL_GET, GLOBAL_SET = 0x20, 0x21, 0x22, 0x23, 0x24
# Blocks, branches, calls, locals and globals, the memory's size, and integers.
_ONE_IMMEDIATE = (
    BLOCK, LOOP, IF, BR, BR_IF, CALL, *range(LOCAL_GET, GLOBAL_SET + 1), 0x3F, 0x40,
)  # fmt: skip
_FUNCTION = 0
_CODE = 10


class Reader:
    """Reads a module's bytes."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def u32(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def bytes(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def text(self) -> str:
        return self.bytes(self.u32()).decode()


def leb(value: int) -> bytes:
    """Return an unsigned number as LEB128."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- Instructions ------------------------------------------------------------------------------


def skip(reader: Reader, opcode: int) -> None:
    """Skip the immediates of an instruction; ValueError: an instruction that C does not make."""
    if opcode in _ONE_IMMEDIATE:
        reader.u32()
    elif opcode == 0x0E:
        for _ in range(reader.u32() + 1):
            reader.u32()
    elif opcode == CALL_INDIRECT or 0x28 <= opcode <= 0x3E:
        reader.u32(), reader.u32()
    elif opcode in (0x41, 0x42):
        reader.u32()
    elif opcode == 0x43:
        reader.bytes(4)
    elif opcode == 0x44:
        reader.bytes(8)
    elif opcode == 0xFC:
        _skip_prefixed(reader)
    elif not (opcode <= 0x01 or opcode in (0x05, 0x0B, 0x0F, 0x1A, 0x1B) or 0x45 <= opcode <= 0xC4):
        raise ValueError(f"an instruction with the opcode {opcode:#x}")


def _skip_prefixed(reader: Reader) -> None:
    kind = reader.u32()
    if kind in (8, 10):  # memory.init, memory.copy
        reader.u32(), reader.u32()
    elif kind in (9, 11):  # data.drop, memory.fill
        reader.u32()
    elif kind > 7:
        raise ValueError(f"an instruction with the opcode 0xfc {kind}")


def instructions(body: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """Yield (opcode, start, end) for each instruction of a body from `at` on."""
    reader = Reader(body, at)
    while reader.at < reader.end:
        start = reader.at
        opcode = reader.byte()
        skip(reader, opcode)
        yield opcode, start, reader.at


# --- The module --------------------------------------------------------------------------------


@dataclass
class Module:
    """What the pass looks at."""

    sections: list[tuple[int, bytes]]
    results: list[bytes]  # of each type: the kinds of its results
    parameters: list[int]  # of each type: how many
    parameter_kinds: list[bytes]
    types: list[int]  # of each function, imports first
    imports: int
    bodies: list[bytes]  # locals and code, without the size
    names: dict[int, str]


def read(data: bytes) -> Module:
    """Read a module; ValueError: it is none, or lacks its names."""
    if data[:8] != b"\0asm\1\0\0\0":
        raise ValueError("not a Wasm module")
    module = Module([], [], [], [], [], 0, [], {})
    reader = Reader(data, 8)
    while reader.at < reader.end:
        kind = reader.byte()
        content = reader.bytes(reader.u32())
        module.sections.append((kind, content))
        readers = {1: _types, 2: _imports, 3: _functions, 10: _bodies, 0: _names}
        if kind in readers:
            readers[kind](module, Reader(content))
    if not module.names:
        raise ValueError("the module has no section of names")
    return module


def _types(module: Module, reader: Reader) -> None:
    for _ in range(reader.u32()):
        reader.byte()
        module.parameters.append(reader.u32())
        module.parameter_kinds.append(reader.bytes(module.parameters[-1]))
        module.results.append(reader.bytes(reader.u32()))


def _imports(module: Module, reader: Reader) -> None:
    for _ in range(reader.u32()):
        reader.text(), reader.text()
        if reader.byte() != _FUNCTION:
            raise ValueError("an import that is no function")
        module.types.append(reader.u32())
        module.imports += 1


def _functions(module: Module, reader: Reader) -> None:
    module.types += [reader.u32() for _ in range(reader.u32())]


def _bodies(module: Module, reader: Reader) -> None:
    module.bodies = [reader.bytes(reader.u32()) for _ in range(reader.u32())]


def _names(module: Module, reader: Reader) -> None:
    if reader.text() != "name":
        return
    while reader.at < reader.end:
        kind, size = reader.byte(), reader.u32()
        if kind != 1:
            reader.bytes(size)
            continue
        for _ in range(reader.u32()):
            index = reader.u32()
            module.names[index] = reader.text()


def code_at(body: bytes) -> int:
    """Return where the code of a body begins, behind its locals."""
    reader = Reader(body)
    for _ in range(reader.u32()):
        reader.u32(), reader.byte()
    return reader.at


def encode(data: bytes, module: Module) -> bytes:
    """Return the module with its bodies as they are now, and of its other sections the names."""
    out = bytearray(data[:8])
    for kind, content in module.sections:
        if kind == _CODE:
            bodies = b"".join(leb(len(body)) + body for body in module.bodies)
            content = leb(len(module.bodies)) + bodies
        if kind != 0 or content[1:].startswith(b"name"):
            out += bytes([kind]) + leb(len(content)) + content
    return bytes(out)


def callers_of(module: Module, roots: set[int], stops: set[int]) -> set[int]:
    """Return the functions that may reach one of the roots, which are among them.

    A call of unknown functions may reach them all. What reaches them only through one of the stops
    does not count.
    """
    callers: dict[int, set[int]] = {}
    found = set(roots)
    for index, body in enumerate(module.bodies, module.imports):
        for opcode, start, _ in instructions(body, code_at(body)):
            if opcode == CALL:
                callers.setdefault(Reader(body, start + 1).u32(), set()).add(index)
            elif opcode == CALL_INDIRECT and index not in stops:
                found.add(index)
    left = list(found)
    while left:
        index = left.pop()
        if index not in stops:
            left += callers.get(index, set()) - found
            found |= callers.get(index, set())
    return found - stops
