"""Options that several commands share, and types of options that click does not have."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from click.core import ParameterSource

from autoddl import store
from autoddl.cli.app import PROG
from autoddl.errors import AutoDDLError, shortened, shown
from autoddl.launch.job import MOST_NODES, MOST_RANKS
from autoddl.perfmodel.profile_entries import MOST_LABEL
from autoddl.sbp import cluster_kinds, mesh

Decorator = Callable[[Any], Any]


def with_options(*options: Decorator) -> Decorator:
    """Return a decorator that gives a command several options, in this order."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def option(
    names: str, help: str, kind: Any = None, metavar: str | None = None, **more: Any
) -> Decorator:
    """Return an option: "-o --output", or with the name of its parameter "--output folder"."""
    return click.option(*names.split(), type=kind, metavar=metavar, help=help, **more)


def flag(names: str, help: str) -> Decorator:
    """Return an option that takes no value."""
    return click.option(*names.split(), is_flag=True, help=help)


def example(words: str) -> str:
    """Return the end of a command's help: one line that runs as it stands, where its files are."""
    return f"\b\nExample:\n  {PROG} {words}"


NODES = with_options(
    option("--nnodes", "nodes (1)", click.IntRange(1, MOST_NODES), "N", default=1),
    option("--node-rank", "this node, from 0", int, "K", default=0),
    option("--master-addr", "where others reach node 0", None, "HOST", default="127.0.0.1"),
    option("--share-cores", "bind each rank to a core and wait asleep (yes with < 2 cores a rank)",
           bool, "[yes|no]"),
)  # fmt: skip
"""Of commands that start ranks on several nodes; all are fields of LaunchJob."""


# A script's own options are its own; -m is the first word of a command, not an option.
OF_SCRIPTS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
WORDS = click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="(script.py | -m module) [ARGS …]"
)
"""The command of a script's ranks, of commands with the settings OF_SCRIPTS."""


def check_words(words: tuple[str, ...]) -> None:
    """Raise click.NoSuchOption where an option stands in front of a script."""
    if words and words[0].startswith("-") and words[0] != "-m":
        raise click.NoSuchOption(words[0])


class _Number(click.FloatRange):
    """A number in a range, without what is none (nan), of which click says that it is in any."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


POSITIVE = _Number(0, min_open=True)
RATE = _Number(0, sys.float_info.max)
NOT_NEGATIVE = _Number(0)
RANKS = click.IntRange(1, MOST_RANKS)
MEASURING = with_options(
    flag("--json as_json", "print the profile instead of a table"),
    flag("--fresh", "forget the results of an interrupted run"),
    option("--timeout timeout_s", "end the ranks after this time", POSITIVE, "SECONDS"),
)
"""Of commands that measure."""


def fields_of(kind: Any, options: SimpleNamespace) -> dict[str, Any]:
    """Return the options that were given and have the names of fields of a dataclass."""
    asked = {name: getattr(options, name, None) for name in kind.__dataclass_fields__}
    return {name: value for name, value in asked.items() if value not in (None, ())}


class Ranks(click.ParamType):
    """A number of ranks, or the fewest and the most: "4" is (4, 4), "2:4" is (2, 4)."""

    name = "ranks"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        fewest, colon, most = value.partition(":")
        try:
            return int(fewest), int(most if colon else fewest)
        except ValueError:
            self.fail(f"{value!r} is not a valid integer, nor two such as 2:4", param, ctx)


class _Name(click.ParamType):
    """The name of something that meshes and clusters are written with."""

    def __init__(self, name: str, allows: Callable[[str], bool], such_as: str) -> None:
        self.name, self.allows, self.such_as = name, allows, such_as

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if not self.allows(value):
            told = f"{shown(value, 60)} is no name of a {self.name}; allowed are such as {self.such_as}"
            self.fail(told, param, ctx)
        return str(value)


KIND = _Name("kind", cluster_kinds.is_kind, "v100 or t4")
LEVEL = _Name("level", mesh.is_level, "node or gpu")


class Listed(click.ParamType):
    """Words between commas, each once and of another type: `Listed(int)` reads "2,4" as (2, 4)."""

    name = "list"

    def __init__(self, each: Any) -> None:
        self.each = click.types.convert_type(each)

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        words = [word.strip() for word in value.split(",")]
        if "" in words:
            self.fail(f"an empty word in {shown(value, 60)}", param, ctx)
        return tuple(dict.fromkeys(self.each.convert(word, param, ctx) for word in words))


def refuse_given(names: Collection[str], why: str) -> None:
    """Raise click.UsageError where the current command was given one of these options.

    `why` says beside which other one they have no effect.
    """
    context = click.get_current_context()
    for param in context.command.params:
        if param.name in names and context.get_parameter_source(param.name) in _GIVEN:
            raise click.UsageError(f"{max(param.opts, key=len)} has no effect {why}")


_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def written(found: Any, *, as_json: bool) -> None:
    """Write a result to stdout: its text, or its plain values as JSON in ASCII."""
    click.echo(json.dumps(found.to_json(), indent=1) if as_json else str(found))


JSON = flag("--json as_json", "print plain values instead of a table")
FORCE = flag("--force", "write over FILE if it is there")


def check_new(path: Path, *, force: bool, beside: str | Path) -> None:
    """Raise AutoDDLError unless a file can be written: a new one, with force any but `beside`."""
    if store.exists(path) and not path.is_dir():
        if store.exists(beside) and path.samefile(beside):
            raise AutoDDLError(
                f"output file {store.told(path)}: it is what is read; give another with -o"
            )
        if not force:
            raise AutoDDLError(
                f"output file {store.told(path)}: exists; add --force, or give another with -o"
            )
    store.check_writable(path)


def name_of(file: Path | None, otherwise: str) -> str:
    """Return the name of a profile that is written to a file."""
    return otherwise if file is None else shortened(file.stem, MOST_LABEL)
