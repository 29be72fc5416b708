"""Dataclasses: `dataclass`, `field`, `fields`, `replace` and `asdict`."""

_MISSING = object()


class Field:
    """A field: its name, its type and its default."""

    def __init__(self, default=_MISSING, default_factory=_MISSING, init=True, repr=True):
        self.name, self.type = None, None
        self.default, self.default_factory = default, default_factory
        self.init, self.repr = init, repr


def field(*, default=_MISSING, default_factory=_MISSING, init=True, repr=True, **_):
    return Field(default, default_factory, init, repr)


def dataclass(
    cls=None, *, init=True, repr=True, eq=True, order=False, frozen=False, slots=False,
    kw_only=False, unsafe_hash=False,
):  # fmt: skip
    """Make a class of fields with an `__init__`, a `__repr__` and an `__eq__`."""
    if order:
        raise TypeError("dataclass(order=True) is not supported")

    def make(cls):
        found = []
        for base in cls.__bases__:
            found += getattr(base, "__dataclass_fields__", [])
        own = cls.__dict__
        for name, type_ in own.get("__fields__", []):
            given = own.get(name, _MISSING)
            made = given if isinstance(given, Field) else Field(given)
            made.name, made.type = name, type_
            found = [each for each in found if each.name != name] + [made]
        cls.__dataclass_fields__ = found
        if "__init__" not in own:
            cls.__init__ = _init(cls, found, kw_only)
        if "__repr__" not in own:
            cls.__repr__ = _repr
        if eq and "__eq__" not in own:
            cls.__eq__ = _eq
        return cls

    return make if cls is None else make(cls)


def _init(cls, found, kw_only):
    names = [each.name for each in found if each.init]

    def init(self, *args, **given):
        if len(args) > (0 if kw_only else len(names)):
            raise TypeError("%s() takes %d values" % (cls.__name__, len(names)))
        for name, value in zip(names, args):
            if name in given:
                raise TypeError("%s() got two values for '%s'" % (cls.__name__, name))
            given[name] = value
        for each in found:
            if each.init and each.name in given:
                value = given.pop(each.name)
            elif each.default is not _MISSING:
                value = each.default
            elif each.default_factory is not _MISSING:
                value = each.default_factory()
            else:
                raise TypeError("%s() lacks '%s'" % (cls.__name__, each.name))
            setattr(self, each.name, value)
        for name in given:
            raise TypeError("%s() has no '%s'" % (cls.__name__, name))
        after = getattr(self, "__post_init__", None)
        if after is not None:
            after()

    return init


def _repr(self):
    shown = [each for each in fields(self) if each.repr]
    parts = ["%s=%r" % (each.name, getattr(self, each.name)) for each in shown]
    return "%s(%s)" % (type(self).__name__, ", ".join(parts))


def _eq(self, other):
    if type(self) is not type(other):
        return NotImplemented
    return _values(self) == _values(other)


def _values(instance):
    return [getattr(instance, each.name) for each in fields(instance)]


def is_dataclass(value):
    return hasattr(value, "__dataclass_fields__")


def fields(value):
    """Return the fields of a dataclass, or of an instance of one."""
    return tuple(value.__dataclass_fields__)


def replace(instance, **changed):
    """Return a copy with other values."""
    given = {each.name: getattr(instance, each.name) for each in fields(instance)}
    given.update(changed)
    return type(instance)(**given)


def asdict(instance):
    """Return the fields by name, those of dataclasses inside of it, too."""
    return {each.name: _plain(getattr(instance, each.name)) for each in fields(instance)}


def _plain(value):
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value
