"""`python -m autoddl codegen plan.json`: write a saved plan as a Python script."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from autoddl.errors import AutoDDLError
from autoddl.plan import load


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m autoddl codegen",
        description="Write a plan as a standalone Python script that needs only OneFlow and NumPy.",
    )
    parser.add_argument("plan", help="a file that Plan.save wrote")
    parser.add_argument(
        "-o", "--output", default="train_parallel.py", help="the script (default: %(default)s)"
    )
    parser.add_argument(
        "--learning-rate", type=float, help="default of the script's own --learning-rate"
    )
    options = parser.parse_args(argv)
    try:
        load(options.plan).codegen(options.output, learning_rate=options.learning_rate)
    except AutoDDLError as error:
        sys.stderr.write(f"autoddl codegen: {error}\n")
        return 2
    return 0


def write(path: str | Path, text: str) -> None:
    """Write a script.

    Raises:
        AutoDDLError: the file can't be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise AutoDDLError(f"codegen: {path}: {error.strerror}; give a path to write to") from None
