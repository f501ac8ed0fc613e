"""What tuned numbers of the search of steps do: `python -m experiments.bench.tuned_numbers`.

Each of search/step/tuning.py is halved and doubled, one at a time. The search with every value gets the
same number of evaluations, so that the table is the same on every machine. It has how much longer the
steps are than with the numbers as they are, in the mean and at most, and the mean gap. All single
searches go to tuned_numbers.csv.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import click
import pandas as pd

from autoddl.perfmodel import profile as profiles
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Mesh
from autoddl.search.baselines import assignments
from autoddl.search.budget import EVALUATION_S, Budget
from autoddl.search.exact import primal_dual
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import SearchOptions
from autoddl.search.step import tuning
from autoddl.search.step.overlap import StepSearch
from experiments.bench.frozen.suite import PROFILE, ZOO
from experiments.lib import cli, frames
from experiments.lib import oneflow_problems as builder
from experiments.lib.programs import captured

NUMBERS = tuple(name for name in vars(tuning) if name.isupper())
FACTORS = (0.5, 2.0)
KNOWN = 32  # layouts and timelines that are kept
COLUMNS: frames.Formats = {
    "number": "{}", "value": "{:g}", "mean": "{:+.2%}", "most": "{:+.2%}", "gap": "{:.2%}",
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--models", ZOO, ("alexnet", "dlrm", "vgg13", "vit"))
@click.option("--meshes", default="2x2,2x4,4x8", show_default=True)
@cli.listed("--numbers", NUMBERS)
@click.option("--evaluations", default=30_000, show_default=True, help="for each search")
@cli.folder("out/tuned_numbers")
def command(
    models: Sequence[str], meshes: str, numbers: Sequence[str], evaluations: int, folder: Path
) -> None:
    """Search with every value, print the table and write the rows."""
    known, rows = profiles.load(PROFILE), []
    for model in models:
        program = captured(folder / "programs" / f"{model}.json", model, ZOO[model])
        for mesh in meshes.split(","):
            network = builder.build(program, Mesh.parse(mesh, known.levels), known)
            for row in searched(network, numbers, evaluations):
                rows.append({"model": model, "mesh": mesh, **row})
                print(
                    "{model} {mesh} {number} {value:g}: {step_s:.6g} s".format(**rows[-1]),
                    flush=True,
                )
    frame = pd.DataFrame(rows)
    frame["longer"] = frame.step_s / frame.before_s - 1
    table = frame.groupby(["number", "value"], sort=False).agg(
        mean=("longer", "mean"), most=("longer", "max"), gap=("gap", "mean")
    )
    print(frames.text(table.reset_index(), COLUMNS))
    frame.to_csv(folder / "tuned_numbers.csv", index=False)


def searched(
    network: CostNetwork, numbers: Sequence[str], evaluations: int
) -> Iterator[frames.Row]:
    """Yield the steps that are found as it is, and with half and twice of each number."""
    starts = dict.fromkeys(assignments(network).values())
    before_s = None
    for name, factor in ((numbers[0], 1.0), *product(numbers, FACTORS)):
        old = getattr(tuning, name)
        value = type(old)(factor * old)
        allowance = Budget(evaluations=evaluations).begin()
        judge = lru_cache(maxsize=KNOWN)(partial(Assigned, network))
        options = SearchOptions(allowance.seconds, allowance.clock, starts=starts)
        with changed(name, value):
            found = StepSearch(network, primal_dual.search, judge).search(options)
        before_s = before_s or found.cost_s
        yield {
            "number": name, "value": value, "step_s": found.cost_s, "before_s": before_s,
            "gap": found.gap, "evaluations": allowance.spent_s() / EVALUATION_S,
        }  # fmt: skip


@contextmanager
def changed(name: str, value: float) -> Iterator[None]:
    """Let a number have another value for a while."""
    before = getattr(tuning, name)
    setattr(tuning, name, value)
    try:
        yield
    finally:
        setattr(tuning, name, before)


if __name__ == "__main__":
    sys.exit(cli.run(command, "bench.tuned_numbers"))
