"""Command lines of experiments: click, bad input in one line on stderr with exit code 2.

Where ranks fail their last lines follow, and the code is 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from autoddl.errors import AutoDDLError
from autoddl.launch.launcher import LaunchError

MISSED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def run(command: click.Command, name: str, argv: Sequence[str] | None = None) -> int:
    """Run a command with `argv`, or what the process was called with; return its exit code.

    `name` is what errors begin with. A command's return value is its exit code; None is 0.
    """
    try:
        code = command.main(
            None if argv is None else list(argv),
            prog_name=f"python -m experiments.{name}", standalone_mode=False,
        )  # fmt: skip
    except LaunchError as error:
        print(f"{name}: {error}", *error.tail, sep="\n", file=sys.stderr)
        return MISSED
    except (click.ClickException, AutoDDLError) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else error
        print(f"{name}: {text}", file=sys.stderr)
        return BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        print(f"{name}: interrupted; what is done is kept", file=sys.stderr)
        return INTERRUPTED
    return code or 0


def folder(default: str) -> Callable[[Any], Any]:
    """Return the option that names the folder of state and results; it is made."""

    def made(_: click.Context, __: click.Parameter, value: Path) -> Path:
        value.mkdir(parents=True, exist_ok=True)
        return value

    return click.option(
        "--folder", type=click.Path(path_type=Path), default=default, callback=made,
        show_default=True, help="state and results",
    )  # fmt: skip


def listed(
    name: str, allowed: Iterable[str], default: Iterable[str] | None = None, **more: Any
) -> Callable[[Any], Any]:
    """Return an option of names with commas between them, which are checked; all by default."""
    known = list(allowed)

    def split(_: click.Context, __: click.Parameter, value: str) -> list[str]:
        names = value.split(",") if value else []
        for each in names:
            if each not in known:
                raise AutoDDLError(f"{name}: got {each!r}; there are {', '.join(known)}")
        return names

    return click.option(
        name, callback=split, default=",".join(known if default is None else default),
        show_default=True, metavar="NAME,…", **more,
    )  # fmt: skip
