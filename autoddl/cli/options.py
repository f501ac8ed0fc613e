"""Options that several commands share, and types of options that click does not have."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from types import SimpleNamespace
from typing import Any

import click

from autoddl.launch.job import MOST_NODES, MOST_RANKS
from autoddl.sbp import cluster_kinds

Decorator = Callable[[Any], Any]


def with_options(*options: Decorator) -> Decorator:
    """Return a decorator that gives a command several options, in this order."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


NODES = with_options(
    click.option(
        "--nnodes", type=click.IntRange(1, MOST_NODES), default=1, metavar="N", help="nodes (1)"
    ),
    click.option("--node-rank", type=int, default=0, metavar="K", help="this node, from 0"),
    click.option(
        "--master-addr", default="127.0.0.1", metavar="HOST", help="where others reach node 0"
    ),
    click.option(
        "--share-cores",
        type=bool,
        metavar="[yes|no]",
        help="bind each rank to a core and wait asleep (yes with < 2 cores a rank)",
    ),
)
"""Of commands that start ranks on several nodes; all are fields of LaunchJob."""


class _Positive(click.FloatRange):
    """A number above 0, without what is none (nan), of which click says that it is in any range."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


POSITIVE = _Positive(0, min_open=True)
RANKS = click.IntRange(1, MOST_RANKS)
MEASURING = with_options(
    click.option("--json", "as_json", is_flag=True, help="print the profile instead of a table"),
    click.option("--fresh", is_flag=True, help="forget the results of an interrupted run"),
    click.option(
        "--timeout",
        "timeout_s",
        type=POSITIVE,
        metavar="SECONDS",
        help="end the ranks after this time",
    ),
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


class _Kind(click.ParamType):
    """The name of a kind of devices, as clusters are written with it: "v100"."""

    name = "kind"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if not cluster_kinds.is_kind(value):
            self.fail(f"{value!r} is no name of a kind; allowed are such as v100 or t4", param, ctx)
        return str(value)


KIND = _Kind()


class Listed(click.ParamType):
    """Words between commas, each once and of another type: `Listed(int)` reads "2,4" as (2, 4)."""

    name = "list"

    def __init__(self, each: Any) -> None:
        self.each = click.types.convert_type(each)

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        words = (word.strip() for word in value.split(","))
        return tuple(dict.fromkeys(self.each.convert(w, param, ctx) for w in words if w))
