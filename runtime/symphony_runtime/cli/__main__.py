"""`python -m symphony_runtime.cli`: the command line, as the script `symphony`."""

import sys

from symphony_runtime.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
