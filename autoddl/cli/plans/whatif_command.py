"""`python -m autoddl whatif`: a plan for each variant of links, devices, memory, mesh and batch."""

from __future__ import annotations

from itertools import chain
from typing import Any

import click

from autoddl.cli.options import JSON, Listed, example, flag, option, with_options, written
from autoddl.cli.plans.planning_options import OTHERS, asked
from autoddl.errors import AutoDDLError, shown


class _Factor(click.ParamType):
    """A factor, "2x", "2" or "0.5x"."""

    name = "factor"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        try:
            return float(value.removesuffix("x"))
        except ValueError:
            return self.fail(f"{shown(value, 60)} is no factor such as 2x or 0.5x", param, ctx)


class _Links(click.ParamType):
    """Factors of links: "node=2x", "node=2x+gpu.latency=0.5x" for both at once."""

    name = "links"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[tuple[str, float], ...]:
        found = []
        for word in value.split("+"):
            level, sign, factor = word.partition("=")
            if not (level and sign):
                self.fail(f"{shown(value, 60)} are no links such as node=2x", param, ctx)
            found.append((level, _Factor().convert(factor, param, ctx)))
        return tuple(found)


def _several(names: str, help: str, each: Any, metavar: str) -> Any:
    return option(names, f"{help}; several between commas", Listed(each), metavar, multiple=True)


_AXES = with_options(
    _several("--mesh", "the first is the base's, unless there is a cluster", str, "4x8,8x8"),
    _several("--memory", "of each device, beside the profile's", str, "SIZE"),
    _several("--links", "bandwidth by level, node=2x; node.latency=0.5x; node=2x+gpu=2x: both",
             _Links(), "LEVEL=2x"),
    _several("--device", "flop/s and bytes/s of devices", _Factor(), "2x"),
    _several("--batch", "samples of a step", int, "N"),
    flag("--product", "all combinations of these, not each alone"),
)  # fmt: skip


@click.command(
    "whatif",
    epilog=example(
        "whatif gpt.json --profile h100 --mesh 2x2 --links node=2x --memory 40GiB --budget 1"
    ),
)
@click.argument("program", metavar="PROGRAM")
@_AXES
@OTHERS
@JSON
def command(
    program: str, mesh: Any, memory: Any, links: Any, device: Any, batch: Any, product: bool,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Plan PROGRAM as it is and for each variant, and print a row for each.

    Each value varies alone. --budget is for each variant, 5 seconds if not given. Other options are
    those of autoddl.optimize.
    """
    given = asked(**options)
    meshes, sizes, factors, speeds, batches = (
        list(chain.from_iterable(each)) for each in (mesh, memory, links, device, batch)
    )
    if sizes:
        if "memory" in given:
            raise AutoDDLError("--memory and --memory-of: both are given; leave one of them out")
        given["memory"] = sizes
    from autoddl import what_if

    found = what_if(
        program, mesh=meshes or None, links=[dict(each) for each in factors], device=speeds,
        batch=batches, product=product, **given,
    )  # fmt: skip
    written(found, as_json=as_json)
