"""Entry point of `python -m autoddl`."""

import sys

from autoddl.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
