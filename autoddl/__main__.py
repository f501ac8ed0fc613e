"""Entry point of `python -m autoddl`."""

import sys

from autoddl.cli import main

if __name__ == "__main__":
    sys.exit(main())
