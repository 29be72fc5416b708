"""`python -m symphony_runtime.sandboxing`: print what a worker gives up here.

It ends with 1 if a layer is missing.
"""

import sys

from symphony_runtime.sandboxing.contain import contain


def main() -> int:
    found = contain(0)
    sys.stdout.write(found.summary() + "\n")
    return 1 if found.missing else 0


if __name__ == "__main__":
    sys.exit(main())
