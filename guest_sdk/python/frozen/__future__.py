"""What CPython programs may import from here is so anyway."""

annotations = None
