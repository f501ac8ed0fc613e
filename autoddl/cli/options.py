"""Options that several commands share, and types of options that click does not have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

Decorator = Callable[[Any], Any]


def with_options(*options: Decorator) -> Decorator:
    """Return a decorator that gives a command several options, in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def measuring_options(*, quick: str, output: str, table: str) -> Decorator:
    """Return the options of commands that measure; their own help for some of them."""
    return with_options(
        click.option("--quick", is_flag=True, help=quick),
        click.option("-o", "--output", type=Path, metavar="FILE", help=output),
        click.option("--csv", type=Path, metavar="FILE", help=table),
        click.option(
            "--json", "as_json", is_flag=True, help="print the profile instead of a table"
        ),
        click.option("--fresh", is_flag=True, help="forget the results of an interrupted run"),
        click.option(
            "--timeout",
            "timeout_s",
            type=click.FloatRange(0, min_open=True),
            metavar="SECONDS",
            help="end the ranks after this time",
        ),
    )


def fields_of(kind: Any, options: SimpleNamespace) -> dict[str, Any]:
    """Return the options that were given and have the names of fields of a dataclass."""
    asked = {name: getattr(options, name, None) for name in kind.__dataclass_fields__}
    return {name: value for name, value in asked.items() if value not in (None, ())}


class Listed(click.ParamType):
    """Words between commas, each once and of another type: `Listed(int)` reads "2,4" as (2, 4)."""

    name = "list"

    def __init__(self, each: Any) -> None:
        self.each = click.types.convert_type(each)

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        words = (word.strip() for word in value.split(","))
        return tuple(dict.fromkeys(self.each.convert(w, param, ctx) for w in words if w))
