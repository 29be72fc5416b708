"""Put what is in locals into memory before calls that may collect garbage.

A collector that looks for pointers in C's stack does not see Wasm's locals. This pass gives each
function that needs it a frame on that stack, with a place for each local that is used behind a call
that may reach `gc_collect`. A local with few assignments is stored behind each of them, and one
with few such calls before each of these. What a place held before stays until the function ends:
the collector may keep garbage for longer, and never frees what is in use.

The module has to be flat, as binaryen's `--flatten` makes it: at a call nothing is on Wasm's own
stack but the arguments. ValueError: it is not.
"""

from dataclasses import dataclass

from tools.wasm_passes.module import (
    BLOCK,
    BR,
    BR_IF,
    BR_TABLE,
    CALL,
    CALL_INDIRECT,
    ELSE,
    END,
    I32,
    I64,
    IF,
    LOCAL_GET,
    LOCAL_SET,
    LOCAL_TEE,
    LOOP,
    RETURN,
    UNREACHABLE,
    Module,
    Reader,
    callers_of,
    code_at,
    instructions,
    leb,
)

COLLECTOR = "gc_collect"
_STACK_POINTER = 0  # wasm-ld's first global
_SIZES = {I32: 4, I64: 8}
_STORES = {I32: b"\x36\x02", I64: b"\x37\x02"}  # with an alignment of 4


def spill(module: Module) -> int:
    """Add the stores; return how many."""
    named = {name: index for index, name in module.names.items()}
    may = callers_of(module, {named[COLLECTOR]}, set())
    return sum(_Function(module, index, may).rewrite() for index in sorted(may))


@dataclass(slots=True)
class _Instruction:
    opcode: int
    start: int
    end: int
    local: int = -1  # of local.get, .set and .tee
    collects: bool = False


class _Function:
    def __init__(self, module: Module, index: int, may: set[int]) -> None:
        self.module, self.index, self.may = module, index, may
        self.body = module.bodies[index - module.imports]
        self.code = code_at(self.body)
        self.kinds = list(module.parameter_kinds[module.types[index]])
        self.parameters = len(self.kinds)
        reader = Reader(self.body)
        for _ in range(reader.u32()):
            count, kind = reader.u32(), reader.byte()
            self.kinds += [kind] * count
        self.list = [self._instruction(*each) for each in instructions(self.body, self.code)]

    def _instruction(self, opcode: int, start: int, end: int) -> _Instruction:
        made = _Instruction(opcode, start, end)
        if opcode in (LOCAL_GET, LOCAL_SET, LOCAL_TEE):
            made.local = Reader(self.body, start + 1).u32()
        elif opcode == CALL:
            made.collects = Reader(self.body, start + 1).u32() in self.may
        elif opcode == CALL_INDIRECT:
            made.collects = True
        return made

    # -- Which locals are used behind a call ---------------------------------------------------
    def _successors(self) -> list[list[int]]:
        """Return for each instruction those that may come next."""
        ends, elses, opened = dict[int, int](), dict[int, int](), list[int]()
        for at, each in enumerate(self.list):
            if each.opcode in (BLOCK, LOOP, IF):
                opened.append(at)
            elif each.opcode == ELSE:
                elses[opened[-1]] = at
            elif each.opcode == END and opened:
                ends[opened.pop()] = at
        found, labels = list[list[int]](), list[int]()
        for at, each in enumerate(self.list):
            next_ = [at + 1] if at + 1 < len(self.list) else []
            if each.opcode in (BLOCK, LOOP, IF):
                labels.append(at)
                if each.opcode == IF:
                    next_.append(elses.get(at, ends[at]) + (at in elses))
            elif each.opcode == ELSE:
                next_ = [ends[labels[-1]]]
            elif each.opcode == END and labels:
                labels.pop()
            elif each.opcode in (BR, BR_IF, BR_TABLE):
                targets = [self._target(labels, ends, depth) for depth in self._depths(each)]
                next_ = targets + (next_ if each.opcode == BR_IF else [])
            elif each.opcode in (RETURN, UNREACHABLE):
                next_ = []
            found.append(next_)
        return found

    def _target(self, labels: list[int], ends: dict[int, int], depth: int) -> int:
        if depth == len(labels):
            return len(self.list) - 1  # the function's end
        label = labels[-1 - depth]
        return label if self.list[label].opcode == LOOP else ends[label]

    def _depths(self, each: _Instruction) -> list[int]:
        reader = Reader(self.body, each.start + 1)
        count = reader.u32() + 1 if each.opcode == BR_TABLE else 1
        return [reader.u32() for _ in range(count)]

    def _live_behind(self) -> list[int]:
        """Return for each instruction the locals that are read behind it, as a mask."""
        successors = self._successors()
        before, behind = [0] * len(self.list), [0] * len(self.list)
        changed = True
        while changed:
            changed = False
            for at in range(len(self.list) - 1, -1, -1):
                live = 0
                for next_ in successors[at]:
                    live |= before[next_]
                behind[at] = live
                each = self.list[at]
                if each.opcode == LOCAL_GET:
                    live |= 1 << each.local
                elif each.opcode in (LOCAL_SET, LOCAL_TEE):
                    live &= ~(1 << each.local)
                if live != before[at]:
                    before[at], changed = live, True
        return behind

    # -- The stores ----------------------------------------------------------------------------
    def rewrite(self) -> int:
        self._check_flat()
        behind = self._live_behind()
        calls = [at for at, each in enumerate(self.list) if each.collects]
        counts = dict[int, int]()
        for at in calls:
            for local, kind in enumerate(self.kinds):
                if kind in _SIZES and behind[at] >> local & 1:
                    counts[local] = counts.get(local, 0) + 1
        if not counts:
            return 0
        assigned = dict.fromkeys(range(self.parameters), 1)
        for each in self.list:
            if each.opcode in (LOCAL_SET, LOCAL_TEE):
                assigned[each.local] = assigned.get(each.local, 0) + 1
        early = {local for local, count in counts.items() if assigned.get(local, 0) <= count}
        places, size = dict[int, int](), 0
        for local in counts:
            places[local] = size
            size += _SIZES[self.kinds[local]]
        return self._emit(places, (size + 15) // 16 * 16, early, behind)

    def _store(self, local: int, places: dict[int, int]) -> bytes:
        frame = b"\x20" + leb(len(self.kinds))
        return frame + b"\x20" + leb(local) + _STORES[self.kinds[local]] + leb(places[local])

    def _emit(self, places: dict[int, int], size: int, early: set[int], behind: list[int]) -> int:
        frame, pointer = leb(len(self.kinds)), leb(_STACK_POINTER)
        enter = (
            b"\x23" + pointer + b"\x41" + _signed(size) + b"\x6b\x22" + frame + b"\x24" + pointer
        )
        leave = b"\x20" + frame + b"\x41" + _signed(size) + b"\x6a\x24" + pointer
        results = self.module.results[self.module.types[self.index]]
        out, stores = bytearray(self._locals() + enter), 0
        for local in sorted(early):
            if local < self.parameters:
                out += self._store(local, places)
                stores += 1
        out += bytes([BLOCK]) + (results or b"\x40")
        for at, each in enumerate(self.list):
            if each.opcode == RETURN:
                out += leave
            elif each.collects:
                late = [x for x in places if x not in early and behind[at] >> x & 1]
                out += b"".join(self._store(local, places) for local in late)
                stores += len(late)
            out += self.body[each.start : each.end]
            if each.opcode in (LOCAL_SET, LOCAL_TEE) and each.local in early:
                out += self._store(each.local, places)
                stores += 1
        self.module.bodies[self.index - self.module.imports] = bytes(out + leave + b"\x0b")
        return stores

    def _locals(self) -> bytes:
        """Return the declarations of the locals, with one more for the frame."""
        reader = Reader(self.body)
        count = reader.u32()
        return leb(count + 1) + self.body[reader.at : self.code] + b"\x01" + bytes([I32])

    # -- Whether anything is below a call's arguments ------------------------------------------
    def _check_flat(self) -> None:
        height = 0
        for each in self.list:
            if each.collects:
                type_ = self._type_of(each)
                if height != self.module.parameters[type_] + (each.opcode == CALL_INDIRECT):
                    name = self.module.names.get(self.index, str(self.index))
                    raise ValueError(f"{name} is not flat")
            height = self._height(each, height)

    def _type_of(self, each: _Instruction) -> int:
        index = Reader(self.body, each.start + 1).u32()
        return self.module.types[index] if each.opcode == CALL else index

    def _height(self, each: _Instruction, height: int) -> int:
        opcode = each.opcode
        if opcode in (CALL, CALL_INDIRECT):
            type_ = self._type_of(each)
            height -= self.module.parameters[type_] + (opcode == CALL_INDIRECT)
            return height + len(self.module.results[type_])
        if opcode in (BLOCK, LOOP, IF, ELSE, END, BR, BR_TABLE, RETURN, UNREACHABLE):
            return 0
        return height + _effect(self.body, each)


_BINARY = (
    range(0x46, 0x50), range(0x51, 0x67), range(0x6A, 0x79), range(0x7C, 0x8B), range(0x92, 0x99),
    range(0xA0, 0xA7),
)  # fmt: skip


def _effect(body: bytes, each: _Instruction) -> int:
    """Return by how much a plain instruction makes the stack higher."""
    opcode = each.opcode
    if opcode in (LOCAL_GET, 0x23, 0x3F) or 0x41 <= opcode <= 0x44:
        return 1
    if opcode in (LOCAL_SET, 0x24, 0x1A, BR_IF) or any(opcode in each for each in _BINARY):
        return -1
    if 0x36 <= opcode <= 0x3E or opcode == 0x1B:
        return -2
    if opcode == 0xFC and Reader(body, each.start + 1).u32() in (8, 10, 11):
        return -3
    return 0


def _signed(value: int) -> bytes:
    """Return a number as signed LEB128."""
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        if (value == 0 and not byte & 0x40) or (value == -1 and byte & 0x40):
            return bytes([*out, byte])
        out.append(byte | 0x80)
