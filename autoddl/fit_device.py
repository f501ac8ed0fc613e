"""`python -m autoddl.fit_device` is `python -m autoddl fit-device`."""

import sys

from autoddl.cli.app import main

if __name__ == "__main__":
    sys.exit(main(["fit-device", *sys.argv[1:]]))
