"""How a source is run: the source first, then the function that is its program."""

import json
from dataclasses import asdict, fields, is_dataclass

import _lip
import asyncio
import symphony


def run(code, names):
    """Run a source. `code` is the function of its module, `names` the module's globals."""
    code()
    function = symphony._program
    if function is None:
        return
    given = _input(symphony.process.input())
    types = _types_of(function.__name__, _lip.source_read().decode(), names)
    for name in given:
        if name in types:
            given[name] = _typed(given[name], types[name])
    result = function(**given)
    if hasattr(result, "send"):
        result = asyncio.run(result)
    if result is not None:
        symphony.process.send(result if isinstance(result, bytes) else json.dumps(_plain(result)))


def _input(given):
    if not given:
        return {}
    try:
        values = json.loads(given)
    except ValueError:
        raise ValueError("the input is no JSON")
    if not isinstance(values, dict):
        raise TypeError("the input has to be a JSON object with the program's parameters")
    return values


# --- Parameters: JSON objects become dataclasses where the annotations say so -------------------


def _types_of(name, source, names):
    """Return the parameters' types, as far as the annotations of the function have values."""
    types = {}
    for part in _split(_signature(name, source)):
        parameter, colon, rest = part.partition(":")
        annotation = _split(rest, "=")[0].strip()
        if colon and annotation:
            try:
                types[parameter.strip()] = eval(annotation, names)
            except Exception:
                pass  # a name that is only there for other type checkers
    return types


def _signature(name, source):
    """Return what is between the parentheses of a function's definition."""
    at = source.find("def %s(" % name)
    if at < 0:
        return ""
    begin = at = at + len("def %s(" % name)
    depth, quote, comment = 1, "", False
    while at < len(source):
        c = source[at]
        if comment:
            comment = c != "\n"
        elif quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c == "#":
            comment = True
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                return source[begin:at]
        at += 1
    return ""


def _split(text, by=","):
    """Split at a character that is in no bracket and no quotes."""
    parts, part, depth, quote = [], "", 0, ""
    for line in text.split("\n"):
        for c in line:
            if quote:
                quote = "" if c == quote else quote
            elif c in "\"'":
                quote = c
            elif c == "#":
                break
            elif c in "([{":
                depth += 1
            elif c in ")]}":
                depth -= 1
            elif c == by and depth == 0:
                parts.append(part)
                part = ""
                continue
            part += c
    parts.append(part)
    return parts


def _typed(value, type_):
    origin, args = getattr(type_, "__origin__", type_), getattr(type_, "__args__", ())
    if is_dataclass(type_) and isinstance(value, dict):
        known = {each.name: each.type for each in fields(type_)}
        return type_(**{key: _typed(each, known.get(key)) for key, each in value.items()})
    if origin is None and args:  # a union
        for each in args:
            value = _typed(value, each)
    elif origin is list and args and isinstance(value, list):
        return [_typed(each, args[0]) for each in value]
    elif origin is dict and len(args) == 2 and isinstance(value, dict):
        return {key: _typed(each, args[1]) for key, each in value.items()}
    elif origin is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _plain(value):
    """Return a result as JSON has it; TypeError: it has no such form."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if is_dataclass(value):
        return _plain(asdict(value))
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, symphony.packing.Record):
        return _plain(value.__dict__)
    raise TypeError("a program cannot return a %s" % type(value).__name__)
