"""Snapshots: a graph of objects as bytes, and the same graph in another process.

All classes in it are declared (`SnapshotClass`). Any other object is a KernelBug when the snapshot
is written, so that nothing is left out by mistake: a new field of a class is in the next snapshot,
or a test fails. The graph has *roots*, which exist in both processes and are filled in. It has
*externals* (a clock, a module's constants), which exist in both and are not changed. The identity
of declared objects is preserved; a list, dict or array belongs to the one object that holds it.

Code is in it only by name: a method of a declared object, or a partial of one.

Objects are written one after the other and refer to each other by number. So a chain of thousands
needs no deep stack, and cycles need no special case.
"""

import gc
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from operator import attrgetter
from pathlib import Path, PurePath
from types import BuiltinMethodType, MethodType
from typing import Any, Final

import msgpack
import numpy as np

from symphony_kernel.protocol.errno import KernelBug

VERSION: Final = 3
_PLAIN: Final = frozenset((type(None), bool, int, float, str, bytes))
_TRIM_MIN: Final = 4096  # elements; a larger array is written without its constant end
_MISSING: Final = object()  # the value of a field that is not set

(_OBJECT, _ROOT, _EXTERNAL, _LIST, _TUPLE, _DICT, _SET, _ARRAY, _ENUM, _NAMED, _METHOD, _PARTIAL,
 _UNSET, _OTHER) = range(14)  # fmt: skip


class SnapshotError(Exception):
    """The bytes are no snapshot of these classes: of another version, or damaged."""


@dataclass(frozen=True)
class SnapshotClass:
    """One class. All its fields are written but those of `made`, which the reader makes anew."""

    cls: type
    made: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


class Snapshotter:
    """Writes and reads snapshots of objects of these classes, below `roots`."""

    def __init__(
        self,
        classes: Sequence[SnapshotClass],
        roots: Mapping[str, object],
        externals: Mapping[str, object],
    ) -> None:
        self.classes = {kept.cls: kept for kept in classes}
        self.names = {_name(kept.cls): kept for kept in classes}
        self.roots, self.externals = dict(roots), dict(externals)

    def write(self) -> bytes:
        """Return a snapshot of the roots; KernelBug if an object's class is not declared."""
        collecting = gc.isenabled()
        gc.disable()  # it would scan everything that is made here, and find nothing
        try:
            return _Writer(self).write()
        finally:
            if collecting:
                gc.enable()

    def read(self, data: bytes) -> None:
        """Fill in the roots; on a SnapshotError they must not be used."""
        try:
            _Reader(self).read(data)
        except (ValueError, TypeError, LookupError, AttributeError, AssertionError) as e:
            raise SnapshotError(f"the snapshot cannot be read: {type(e).__name__}: {e}") from e


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _slots(cls: type) -> list[str]:
    """Return the names of a class's slots, or of its attributes if mypyc compiled it."""
    attributes = getattr(cls, "__mypyc_attrs__", None)
    if attributes is not None:
        return sorted(set(attributes) - {"__dict__"})  # as a generic class has
    return sorted({name for base in cls.__mro__ for name in getattr(base, "__slots__", ())})


class _Shape:
    """The fields of one class in this snapshot."""

    def __init__(self, number: int, kept: SnapshotClass, example: object) -> None:
        self.number = number
        names = _slots(kept.cls) or sorted(vars(example))
        self.fields = [name for name in names if name not in kept.made]
        # With several names it returns a tuple, with one name the bare value.
        self._get: Callable[[object], Any] | None = (
            attrgetter(*self.fields) if self.fields else None
        )
        self._one = len(self.fields) == 1

    def values(self, thing: object) -> Sequence[Any]:
        if self._get is None:
            return ()
        try:
            return (self._get(thing),) if self._one else self._get(thing)
        except AttributeError:
            return [getattr(thing, name, _MISSING) for name in self.fields]


class _Writer:
    def __init__(self, of: Snapshotter) -> None:
        self._kept, self._roots = of.classes, of.roots
        self._names = {id(thing): (_ROOT, name) for name, thing in of.roots.items()}
        self._names |= {id(thing): (_EXTERNAL, name) for name, thing in of.externals.items()}
        self._named = {type(thing) for thing in (*of.roots.values(), *of.externals.values())}
        self._objects = {
            cls for cls in of.classes if not issubclass(cls, tuple | Enum)
        } - self._named
        self._shapes: dict[type, _Shape] = {}
        self._numbers: dict[int, int] = {}  # id -> number
        self._found: list[object] = []  # by number; references, so that no id is reused

    def write(self) -> bytes:
        roots = {name: self._fields(thing) for name, thing in self._roots.items()}
        objects: list[Any] = []
        while len(objects) < len(self._found):  # writing one object may find others
            objects.append(self._fields(self._found[len(objects)]))
        classes = [[_name(cls), shape.fields] for cls, shape in self._shapes.items()]
        packed: bytes = msgpack.packb([VERSION, classes, roots, objects], use_bin_type=True)
        return packed

    def _fields(self, thing: object) -> list[Any]:
        cls = type(thing)
        shape = self._shapes.get(cls)
        if shape is None:
            shape = self._shapes[cls] = _Shape(len(self._shapes), self._declared(thing), thing)
        value, plain = self._value, _PLAIN
        values = shape.values(thing)
        return [shape.number, *[v if type(v) in plain else value(v) for v in values]]

    def _declared(self, thing: object) -> SnapshotClass:
        kept = self._kept.get(type(thing))
        if kept is None:
            raise KernelBug(f"{_name(type(thing))} is not in snapshot_classes: {thing!r}")
        return kept

    def _value(self, value: Any) -> Any:
        cls = type(value)
        if cls in _PLAIN:
            return value
        if cls in self._objects:
            return self._object(value)
        if cls in self._named:
            named = self._names.get(id(value))
            if named is not None:
                return list(named)
            if cls in self._kept and not issubclass(cls, tuple | Enum):
                return self._object(value)
        return self._container(cls, value)

    def _object(self, value: object) -> list[int]:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._found)
            self._found.append(value)
        return [_OBJECT, number]

    def _container(self, cls: type, value: Any) -> Any:
        item = self._value
        if cls is list:
            return [_LIST, *map(item, value)]
        if cls is tuple:
            return [_TUPLE, *map(item, value)]
        if cls in (dict, OrderedDict, Counter):
            flat = [item(each) for pair in value.items() for each in pair]
            return [_DICT, cls.__name__, *flat]
        if cls in (set, frozenset):
            return [_SET, cls.__name__, *sorted(map(item, value))]
        if cls in (bytearray, deque):
            return [_OTHER, cls.__name__, bytes(value) if cls is bytearray else item(list(value))]
        if cls is np.ndarray:
            return _array(value)
        if issubclass(cls, PurePath):
            return [_OTHER, "Path", str(value)]
        if isinstance(value, np.generic):
            return item(value.item())
        if value is _MISSING:
            return [_UNSET]
        return self._declared_value(cls, value)

    def _knows(self, thing: object) -> bool:
        # A builtin like `len` has a `__self__` too: a method of a compiled class has a known one.
        return type(thing) in self._kept or type(thing) in self._named

    def _declared_value(self, cls: type, value: Any) -> Any:
        if cls is MethodType or (cls is BuiltinMethodType and self._knows(value.__self__)):
            return [_METHOD, self._value(value.__self__), value.__name__]
        if cls is partial and not value.keywords:
            return [_PARTIAL, self._value(value.func), self._value(value.args)]
        self._declared(value)
        if isinstance(value, Enum):
            return [_ENUM, _name(cls), value.value]
        return [_NAMED, _name(cls), *map(self._value, value)]


def _array(array: Any) -> list[Any]:
    """Return an array's shape and bytes. Of a large one the constant end is one element."""
    flat = np.ascontiguousarray(array).reshape(-1)
    tail = b""
    if flat.size > _TRIM_MIN:
        different = flat[::-1] != flat[-1]
        first = int(different.argmax())
        kept = flat.size - first if different[first] else 1
        tail, flat = flat[-1:].tobytes(), flat[:kept]
    return [_ARRAY, array.dtype.str, list(array.shape), flat.tobytes(), tail]


def _read_array(dtype: str, shape: list[int], head: bytes, tail: bytes) -> Any:
    given = np.frombuffer(head, dtype)
    if not tail:
        return given.reshape(shape).copy()
    whole = np.empty(int(np.prod(shape)), dtype)
    whole[: len(given)] = given
    whole[len(given) :] = np.frombuffer(tail, dtype)
    return whole.reshape(shape)


def _write_over(there: Any, given: Any, name: str) -> None:
    """Fill a root's array in place: other objects share it."""
    if (there.dtype, there.shape) != (given.dtype, given.shape):
        raise SnapshotError(f"{name} has the shape {given.shape}, not {there.shape}")
    there[...] = given


class _Reader:
    def __init__(self, of: Snapshotter) -> None:
        self._names, self._roots, self._externals = of.names, of.roots, of.externals
        self._objects: list[Any] = []
        self._classes: list[tuple[SnapshotClass, list[str]]] = []

    def read(self, data: bytes) -> None:
        version, classes, roots, objects = msgpack.unpackb(data, strict_map_key=False)
        if version != VERSION:
            raise SnapshotError(f"the snapshot has version {version}, not {VERSION}")
        self._classes = [(self._names[name], fields) for name, fields in classes]
        for kept, fields in self._classes:
            self._check(kept, fields)
        # All objects are made before any is filled: references may be cyclic.
        self._objects = [
            self._classes[number][0].cls.__new__(self._classes[number][0].cls)
            for number, *_ in objects
        ]
        for thing, (number, *values) in zip(self._objects, objects, strict=True):
            self._fill(thing, number, values, made=True)
        if set(roots) != set(self._roots):
            raise SnapshotError(
                f"the snapshot has the roots {sorted(roots)}, not {sorted(self._roots)}"
            )
        for name, (number, *values) in roots.items():
            self._fill(self._roots[name], number, values, made=False)

    def _check(self, kept: SnapshotClass, fields: list[str]) -> None:
        slots = [name for name in _slots(kept.cls) if name not in kept.made]
        if slots and slots != sorted(fields):
            raise SnapshotError(f"{_name(kept.cls)} had the fields {fields} and has {slots}")

    def _fill(self, thing: Any, number: int, values: list[Any], *, made: bool) -> None:
        kept, fields = self._classes[number]
        assert type(thing) is kept.cls
        for name, value in zip(fields, values, strict=True):
            if type(value) is not list:
                object.__setattr__(thing, name, value)
            elif value[0] == _ARRAY and not made:
                _write_over(getattr(thing, name), _read_array(*value[1:]), name)
            elif value[0] != _UNSET:
                object.__setattr__(thing, name, self._value(value))
        if made:
            for name, make in kept.made.items():
                object.__setattr__(thing, name, make())

    def _value(self, value: Any) -> Any:
        if type(value) is not list:
            return value
        kind, *rest = value
        if kind == _OBJECT:
            return self._objects[rest[0]]
        if kind in (_ROOT, _EXTERNAL):
            return (self._roots if kind == _ROOT else self._externals)[rest[0]]
        if kind == _ARRAY:
            return _read_array(*rest)
        if kind in (_LIST, _TUPLE):
            items = [self._value(each) for each in rest]
            return items if kind == _LIST else tuple(items)
        return self._named(kind, *rest)

    def _named(self, kind: int, name: Any, *rest: Any) -> Any:
        item = self._value
        if kind == _DICT:
            cls: Any = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}[name]
            filled = cls()
            for key, value in zip(rest[::2], rest[1::2], strict=True):
                filled[item(key)] = item(value)
            return filled
        if kind == _SET:
            return {"set": set, "frozenset": frozenset}[name](map(item, rest))
        if kind == _OTHER:
            return {"bytearray": bytearray, "deque": deque, "Path": Path}[name](item(rest[0]))
        if kind == _METHOD:
            return getattr(item(name), rest[0])
        if kind == _PARTIAL:
            return partial(item(name), *item(rest[0]))
        if kind == _ENUM:
            return self._names[name].cls(rest[0])
        assert kind == _NAMED, kind
        return self._names[name].cls(*map(item, rest))
