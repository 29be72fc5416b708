"""JSON values, compared."""

import math
from typing import Any


def close(a: Any, b: Any) -> bool:
    """Whether two values are equal, where floats may differ in the last places."""
    if isinstance(a, float) or isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-14, abs_tol=1e-300)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    return type(a) is type(b) and bool(a == b)
