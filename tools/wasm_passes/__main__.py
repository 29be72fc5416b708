"""Spill what a collector has to see, then make functions return while a flag is set.

    python tools/wasm_passes in.wasm out.wasm
"""

import sys
from pathlib import Path

from module import encode, read
from spill import spill
from unwind import unwind


def main() -> None:
    source, target = sys.argv[1:]
    data = Path(source).read_bytes()
    module = read(data)
    stores, checks = spill(module), unwind(module)
    Path(target).write_bytes(encode(data, module))
    print(f"{stores} stores for the collector, {checks} checks of the flag")


if __name__ == "__main__":
    main()
