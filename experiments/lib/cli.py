"""Command lines of experiments: those of autoddl's commands, and options that several have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from autoddl.cli import app
from autoddl.cli.options import Listed

MISSED = 1  # exit code where a bar is missed


def run(command: click.Command, name: str, argv: Sequence[str] | None = None) -> int:
    """Run a command with `argv`, or what the process was called with; return its exit code.

    `name` is what errors begin with. A command's return value is its exit code; None is 0.
    """
    words = sys.argv[1:] if argv is None else argv
    code = app.run(command, words, prog=f"python -m experiments.{name}", prefix=name)
    if code == app.INTERRUPTED:
        app.tell(name, "interrupted; what is done is kept")
    return code


def folder(default: str) -> Callable[[Any], Any]:
    """Return the option that names the folder of state and results; it is made."""

    def made(_: click.Context, __: click.Parameter, value: Path) -> Path:
        value.mkdir(parents=True, exist_ok=True)
        return value

    return click.option(
        "--folder", type=click.Path(path_type=Path), default=default, callback=made,
        show_default=True, help="state and results",
    )  # fmt: skip


def devices() -> Callable[[Any], Any]:
    """Return the option that names the folder of measured devices, which experiments may share."""
    return click.option(
        "--devices", type=click.Path(path_type=Path),
        help="folder of what was measured of devices, which experiments may share; by default --folder",
    )  # fmt: skip


def listed(
    name: str, allowed: Iterable[str], default: Iterable[str] | None = None, **more: Any
) -> Callable[[Any], Any]:
    """Return an option of names with commas between them, which are checked; all by default."""
    known = list(allowed)
    words = ",".join(known if default is None else default)
    return click.option(
        name, type=Listed(click.Choice(known)), default=words or None,
        show_default=True, metavar="NAME,…", **more,
    )  # fmt: skip
