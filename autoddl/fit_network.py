"""`python -m autoddl.fit_network` is `python -m autoddl fit-network`."""

import sys

from autoddl.cli.app import main

if __name__ == "__main__":
    sys.exit(main(["fit-network", *sys.argv[1:]]))
