"""Names for annotations. Nothing is checked, but for the parameters of a program."""


class _Name:
    def __getitem__(self, parameters):
        return self

    def __or__(self, other):
        return self

    def __ror__(self, other):
        return self

    def __call__(self, *args, **given):
        return args[-1] if args else self


class _Optional:
    def __getitem__(self, type_):
        return type_ | None if type_ is not None else None


class _Union:
    def __getitem__(self, types):
        if not isinstance(types, tuple):
            return types
        union = types[0]
        for each in types[1:]:
            union = union | each
        return union


Optional, Union = _Optional(), _Union()
Any = Callable = Awaitable = Coroutine = Literal = ClassVar = Final = Generic = _Name()
Iterable = Iterator = Sequence = Mapping = AsyncIterator = Protocol = Self = _Name()
List, Dict, Tuple, Set = list, dict, tuple, set
TYPE_CHECKING = False


def TypeVar(name, *_, **__):
    return Any


def cast(_, value):
    return value
