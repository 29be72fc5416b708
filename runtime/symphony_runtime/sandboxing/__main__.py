"""`python -m symphony_runtime.sandboxing`: what a worker of this user gets here; 1 if not all."""

import sys

from symphony_runtime.sandboxing.contain import contain


def main() -> int:
    """Lock this process down and say how far that went."""
    found = contain(0)
    sys.stdout.write(found.words() + "\n")
    return 1 if found.missing else 0


if __name__ == "__main__":
    sys.exit(main())
