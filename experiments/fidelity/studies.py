"""The studies: testbeds, models, and the plans of both that are predicted and run.

plans      baselines, the searched plan, and random ones from near to far of it
halves     plans of the whole batch, and of its two halves in turn
pipelines  stages of one node each, cut by the planner, and badly on purpose
mixed      on nodes of two kinds ours, as many layers in each stage, and cuts at random
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autoddl.api import optimize
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Program
from experiments.fidelity import samples, workload
from experiments.fidelity.mixed_plans import LAYERS, Division, DrawnCut, MixedPlans
from experiments.fidelity.workload import Bed, core_share
from experiments.lib import oneflow_problems as builder

SEARCHES = ("exact", "Megatron", "expert parallel", "data parallel")
BUDGET_S = 10.0
PLANS, RANDOM = 12, 9  # of each model on a testbed; of those on unlike nodes that are drawn
OURS = "ours"


class MadePlan(NamedTuple):
    """A plan by a name; `over` is that of the plan with which it is compared."""

    name: str
    plan: PlanValue
    over: str = ""


Make = Callable[[Program, Bed, Profile], Iterator[MadePlan]]


@dataclass(frozen=True)
class FidelityStudy:
    """Plans that `make` makes of models (their sizes) on testbeds, each run in several passes.

    `links` are options of fit-network. Scores are of groups `by` these columns; `most` and `least` are
    bars of them, `longer` are those of (model, plan): how many times as long it has to take as the plan
    with which it is compared.
    """

    make: Make
    beds: Sequence[Bed]
    models: Mapping[str, Mapping[str, Any]]
    links: Sequence[str] = ("--minbytes", "1K", "--maxbytes", "4M", "--budget", "100")
    passes: int = 3  # apart in time, so that a slow phase of the machine does not hit all
    by: Sequence[str] = ("bed",)
    most: Mapping[str, float] = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)
    longer: Mapping[tuple[str, str], float] = field(default_factory=dict)


def plans(program: Program, bed: Bed, profile: Profile) -> Iterator[MadePlan]:
    """Yield the baselines, the searched plan and random ones."""
    problem = builder.build(program, bed.mesh, profile)
    for number, (name, plan) in enumerate(samples.plans(problem, PLANS)):
        yield MadePlan(f"{number:02d} {name}", plan)


def halves(program: Program, bed: Bed, profile: Profile) -> Iterator[MadePlan]:
    """Yield plans of the whole batch, and of two halves in turn, found by the same search."""
    for search in SEARCHES:
        options: dict[str, Any] = {
            "mesh": bed.mesh,
            "profile": profile,
            "budget": BUDGET_S,
            "search": search,
        }
        try:
            whole, parted = optimize(program, **options), optimize(program, **options, duplex=True)
        except AutoDDLError:
            continue  # a baseline that does not apply
        yield MadePlan(search, whole)
        yield MadePlan(f"{search}, halves", parted, search)


def pipelines(program: Program, bed: Bed, profile: Profile) -> Iterator[MadePlan]:
    """Yield stages of a node each: the planner's cut, and the first stage with 0.7 of the layers."""
    count = 2 * bed.nodes
    ours = optimize(
        program, cluster=bed.cluster, profile=profile, budget=BUDGET_S, pipeline=bed.nodes,
        micro_batches=count,
    )  # fmt: skip
    yield MadePlan(OURS, ours)
    made, ranks = MixedPlans(program, bed.cluster, profile), [*range(bed.count)]
    stages = tuple(tuple(ranks[n * bed.ranks : (n + 1) * bed.ranks]) for n in range(bed.nodes))
    layers = len(made.begins)
    first = min(round(0.7 * layers), layers - bed.nodes + 1)
    rest = range(layers - bed.nodes + 2, layers)
    yield MadePlan("uneven", made.plan(DrawnCut("uneven", stages, (first, *rest), count)), OURS)


def mixed(program: Program, bed: Bed, profile: Profile) -> Iterator[MadePlan]:
    """Yield ours, as many layers in each stage, and drawn cuts."""
    made = MixedPlans(program, bed.cluster, profile)
    yield MadePlan(OURS, made.ours())
    yield MadePlan(LAYERS, made.plan(made.by_layers()), OURS)
    for cut in made.at_random(DIVISIONS[bed.name], 0, RANDOM):
        yield MadePlan(cut.name, made.plan(cut))


# Fast ranks are twice as fast, with links four times as fast; together 90 % of two cores.
ALONE = Bed("4x1-mixed", 4, 1, "200mbit,200mbit,50mbit,50mbit", "0.6,0.6,0.3,0.3",
            ("fast", "fast", "slow", "slow"))  # fmt: skip
BY_TWO = Bed("2x2-mixed", 2, 2, "200mbit,50mbit", "0.6,0.3", ("fast", "slow"))
DIVISIONS: Mapping[str, Sequence[Division]] = {
    ALONE.name: [((0,), (1,), (2,), (3,))],
    BY_TWO.name: [((0,), (1,), (2, 3)), ((0, 1), (2,), (3,))],
}
STUDIES = {
    "plans": FidelityStudy(
        plans,
        [
            Bed("2x2-500mbit", 2, 2, "500mbit"), Bed("4x1-200mbit", 4, 1, "200mbit"),
            Bed("2x4-200mbit", 2, 4, "200mbit"), Bed("loopback-4", 1, 4, None),
        ],
        workload.MODELS, passes=2,
    ),
    "halves": FidelityStudy(
        halves,
        [
            Bed(f"2x{ranks}-{rate}", 2, ranks, rate)
            for ranks in (1, 2) for rate in ("200mbit", "500mbit", "1gbit")
        ],
        workload.PAIRED,
    ),
    # A core's flop for each byte that its node can send are about those of a GPU beside 200 Gbit/s. Of
    # shorter messages a good part passes in the burst of the token bucket, at no cost of its own.
    "pipelines": FidelityStudy(
        pipelines,
        [
            Bed(f"{nodes}x{ranks}-50mbit", nodes, ranks, "50mbit", core_share(nodes * ranks))
            for nodes, ranks in ((2, 1), (2, 2), (4, 1))
        ],
        workload.STAGED,
        ("--minbytes", "64K", "--maxbytes", "1M", "--stepfactor", "2", "--budget", "60"),
    ),
    "mixed": FidelityStudy(
        mixed, [ALONE, BY_TWO], workload.UNLIKE,
        ("--quick", "--minbytes", "64K", "--maxbytes", "256K", "--stepfactor", "4", "--budget", "30"),
        by=("bed", "model"), most={"mean_error": 0.15, "regret": 0.03}, least={"spearman": 0.9},
        longer={(model, LAYERS): 1.25 for model in workload.UNLIKE},
    ),
}  # fmt: skip
