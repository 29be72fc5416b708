"""Functions of functions: `partial`, `reduce`, `wraps`, `lru_cache` and `cache`."""


class partial:
    """A function with some of its arguments given."""

    def __init__(self, func, *args, **keywords):
        self.func, self.args, self.keywords = func, args, keywords

    def __call__(self, *args, **given):
        return self.func(*(self.args + args), **dict(self.keywords, **given))


def reduce(function, iterable, *initial):
    iterator = iter(iterable)
    value = initial[0] if initial else next(iterator)
    for each in iterator:
        value = function(value, each)
    return value


def wraps(wrapped, **_):
    """Leave the function as it is: its name cannot be changed here."""
    return lambda function: function


def lru_cache(maxsize=128, typed=False):
    """Keep the results for arguments; all of them are kept up to `maxsize`, then none."""
    if callable(maxsize):
        return lru_cache()(maxsize)

    def wrap(function):
        known = {}

        def cached(*args, **given):
            key = (args, tuple(sorted(given.items())))
            if key not in known:
                if maxsize is not None and len(known) >= maxsize:
                    known.clear()
                known[key] = function(*args, **given)
            return known[key]

        return cached

    return wrap


def cache(function):
    return lru_cache(None)(function)
