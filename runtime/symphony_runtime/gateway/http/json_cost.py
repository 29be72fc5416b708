"""The cost of parsing a JSON body, counted before it is parsed.

Python's parser holds the interpreter until it is done. A body of 7 MB with half a million keys
stops every other request for half a second, also from a thread. So values are counted first, in
slices that take about a millisecond each. A unit is about 0.1 us of the parser's time.
"""

_SLICE_BYTES = 64 << 10
_KEY, _CONTAINER, _VALUE = 16, 4, 1


def parse_cost(body: bytes, most: int) -> int:
    """Return the cost of parsing a body in UTF-8; counting ends when it is above `most`.

    The content of strings costs nothing.
    """
    cost, at, inside = 0, 0, 0
    while at < len(body) and cost <= most:
        part = body[at : at + _SLICE_BYTES]
        # Never within an escape: the last of an odd number of backslashes begins one.
        end = at + len(part) + (len(part) - len(part.rstrip(b"\\"))) % 2
        parts = body[at:end].replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        cost += _cost(b"".join(parts[inside::2]))
        inside ^= (len(parts) - 1) & 1
        at = end
    return cost


def _cost(text: bytes) -> int:
    containers = text.count(b"{") + text.count(b"[")
    return _KEY * text.count(b":") + _CONTAINER * containers + _VALUE * text.count(b",")
