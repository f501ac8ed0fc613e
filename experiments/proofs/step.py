"""Hold the bound and the search of steps against brute force: `python -m experiments.proofs.step`.

The bounds of random mixtures have to lie below the simulated steps of random assignments of models of
the zoo. Of tiny problems, in which a few variables of a small network have a few choices left, every
assignment is simulated: bounds have to lie below all steps, and the search should find the least.
The exit code is 1 where a bound lies above a step, or the search finds less than 95 % of the minima.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import click
import numpy as np

from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Mesh
from autoddl.search.exact import primal_dual
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.restriction import restricted
from autoddl.search.result import SearchOptions
from autoddl.search.rivals.random_sampling import random_assignment
from autoddl.search.step.bound_network import Kind, Mixture, StepBounds
from autoddl.search.step.dependency_path import EARLY, EITHER, LATE, DependencyPath
from autoddl.search.step.overlap import StepSearch
from experiments.bench.frozen.suite import PROFILE
from experiments.lib import cli
from experiments.lib.oneflow_problems import build
from experiments.lib.programs import captured

MODELS = ("mlp", "gpt", "vgg13", "dlrm", "bert_moe")
MESHES = ("4", "2x2", "2x4")
ROUNDING = 1 + 1e-9
FREE, CHOICES = 5, 3  # variables of a tiny problem, and the most choices of each
ENOUGH = 0.95


@click.command(help=__doc__)
@cli.listed("--models", MODELS)
@click.option("--random", "samples", default=10_000, show_default=True, help="assignments in all")
@click.option("--tiny", default=100, show_default=True, help="problems of which all are simulated")
@click.option(
    "--profile",
    default=PROFILE,
    show_default=False,
    help="file or bundled name; by default the A100 of experiments.bench.frozen",
)
@click.option("--excess", default=1.0, show_default=True,
              help="what the weights of a mixture add up to; above 1 the proof has to fail")  # fmt: skip
@cli.folder("out/step")
def command(
    models: Sequence[str], samples: int, tiny: int, profile: str, excess: float, folder: Path
) -> int:
    """Do both, and print how near the bounds come and what was found."""
    known = profiles.load(profile)
    networks = [
        build(captured(folder / f"{model}.json", model), Mesh.parse(mesh, known.levels), known)
        for model in models
        for mesh in MESHES
    ]
    above, nearest = 0, 0.0
    for number, network in enumerate(networks):
        shares = list(_shares(network, number, -(-samples // len(networks)), excess))
        above += sum(share > ROUNDING for share in shares)
        nearest = max(nearest, *shares)
    drawn = -(-samples // len(networks)) * len(networks)
    print(f"{drawn:,} random assignments: {above} steps below a bound, nearest at {nearest:.1%}")
    wrong = best = 0
    for seed in range(tiny):
        is_wrong, is_best = _tiny(networks[seed % len(networks)], seed, excess)
        wrong, best = wrong + is_wrong, best + is_best
    print(f"{tiny} tiny problems: the least step found in {best}, {wrong} bounds above it")
    return cli.MISSED if above or wrong or best < ENOUGH * tiny else 0


def _step(network: CostNetwork, point: Sequence[int]) -> StepTimeline:
    return Assigned(network, point).timeline


def _shares(network: CostNetwork, seed: int, count: int, excess: float) -> Iterator[float]:
    """Yield by which share of their steps mixtures bound random assignments."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        point = random_assignment(network, int(rng.integers(1 << 30)))
        found = _step(network, point)
        if number % 100 == 0:
            bounds = StepBounds(network, DependencyPath.longest(found))
            weights = _weights(bounds, rng, excess)
            mixed = Mixture(bounds, weights).network
        yield mixed.cost_s(point) / found.works.end_s
        yield float(np.array([*weights.values()]) @ bounds.of(found)) / found.works.end_s


def _weights(bounds: StepBounds, rng: np.random.Generator, total: float) -> dict[Kind, float]:
    """Draw weights that have this sum in each window, and in either the smaller one."""
    found: dict[Kind, float] = {}
    for window in (EARLY, LATE):
        own = [kind for kind in bounds.kinds if kind[0] == window]
        drawn = total * rng.dirichlet(np.full(len(own), 0.3))
        found.update(zip(own, drawn.tolist(), strict=True))
    for resource in bounds.resources:
        found[EITHER, resource] = min(found[EARLY, resource], found[LATE, resource])
    return {kind: found[kind] for kind in bounds.kinds}


def _tiny(network: CostNetwork, seed: int, excess: float) -> tuple[bool, bool]:
    """Simulate all assignments of a tiny problem; tell whether a bound is wrong, the search right.

    Bounds are that of the search, and that of a mixture whose weights add up to `excess`.
    """
    rng = np.random.default_rng((seed, 1))
    domains = [np.array([c]) for c in random_assignment(network, seed)]
    several = np.flatnonzero(network.variables.sizes > 1)
    for variable in rng.choice(several, FREE, replace=False).tolist():
        size = int(network.variables.sizes[variable])
        domains[variable] = np.sort(rng.choice(size, min(size, CHOICES), replace=False))
    part = restricted(network, domains)
    judge = cache(lambda point: Assigned(part, point))
    found = StepSearch(part, primal_dual.search, judge).search(SearchOptions())
    bounds = StepBounds(part, DependencyPath.longest(_step(part, found.assignment)))
    mixed = primal_dual.search(Mixture(bounds, _weights(bounds, rng, excess)).network)
    bound_s = max(found.lower_bound_s, mixed.lower_bound_s)
    points = itertools.product(*[range(n) for n in part.variables.sizes.tolist()])
    least_s = min(_step(part, point).works.end_s for point in points)
    return bound_s > least_s * ROUNDING, found.cost_s <= least_s * ROUNDING


if __name__ == "__main__":
    sys.exit(cli.run(command, "proofs.step"))
