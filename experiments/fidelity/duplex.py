"""What two halves of the batch in turn gain, on real ranks: `python -m experiments.fidelity.duplex`.

On testbeds of two nodes, with links of several rates, the best plan of the whole batch and that of its
halves train by turns, and so do both plans of each baseline. What is gained is printed beside what the
simulation says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from autoddl.api import optimize
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Program
from experiments.fidelity import pairs
from experiments.fidelity.workload import Bed
from experiments.lib import cli

BEDS = {
    bed.name: bed
    for ranks in (1, 2)
    for rate in ("200mbit", "500mbit", "1gbit")
    for bed in [Bed(f"2x{ranks}-{rate}", 2, ranks, rate)]
}
MODELS = ("mlp", "gpt", "bert_moe")
SEARCHES = ("exact", "Megatron", "expert parallel", "data parallel")
BUDGET_S = 10.0


@click.command(help=__doc__)
@cli.listed("--beds", BEDS)
@cli.listed("--models", MODELS)
@click.option("--repetitions", default=3, show_default=True, help="of each plan, by turns")
@cli.folder("out/duplex")
def command(beds: Sequence[str], models: Sequence[str], repetitions: int, folder: Path) -> None:
    """Calibrate the testbeds, time the plans in both ways; print and write the table."""
    chosen = [BEDS[name] for name in beds]
    frame = pairs.timed(halved, chosen, models, repetitions, folder)
    frame["sign"] = (frame["gain"] > 0) == (frame["predicted_gain"] > 0)
    pairs.shown(frame, folder, "duplex")
    error = (frame["gain"] - frame["predicted_gain"]).abs()
    print(
        f"{frame['sign'].sum()} of {len(frame)} gains have the predicted sign; they are off by "
        f"{error.mean():.1%} of the step on average, at most {error.max():.1%}"
    )


def halved(program: Program, bed: Bed, profile: Path) -> Iterator[pairs.Pair]:
    """Yield plans of the whole batch, and of two halves in turn, found by the same search."""
    for search in SEARCHES:
        options: dict[str, Any] = {
            "mesh": bed.mesh,
            "profile": profile,
            "search": search,
            "budget": BUDGET_S,
        }
        try:
            whole = optimize(program, **options)
            halves = optimize(program, **options, duplex=True)
        except AutoDDLError:
            continue  # a baseline that does not apply
        yield search, whole, halves, (whole.estimate.step_s, halves.estimate.step_s)


if __name__ == "__main__":
    sys.exit(cli.run(command, "duplex"))
