"""Plans that the experiment of unlike nodes holds against ours."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from autoddl.plan.value import PlanValue
from autoddl.sbp.mesh import Cluster
from autoddl.sbp.program.blocks import layer_path
from autoddl.search.budget import Budget
from experiments.fidelity import mixed_plans
from experiments.fidelity.mixed_plans import DrawnCut, MixedPlans
from tests.support.clusters import cluster, of_two_kinds
from tests.support.programs import transformer

# Ops of a millisecond, which a link of the testbed is fast enough for.
SLOW = replace(cluster().device, peak_flops={"float32": 1e8}, kernels={})
KINDS = of_two_kinds(replace(cluster(), devices={"": SLOW}), slower=3.0)
PLANS = MixedPlans(transformer(layers=8, batch=8), Cluster.parse("1*fastx2 + 1*slowx2"), KINDS)
DIVISIONS = [((0,), (1,), (2, 3)), ((0, 1), (2,), (3,))]


def layers(plan: PlanValue) -> list[int]:
    """Return how many layers each part has."""
    modules = [[plan.program.op[op].module for op in part.layout.signatures] for part in plan.parts]
    return [len({layer_path(m) for m in of if ".blocks." in m}) for of in modules]


def test_as_many_layers() -> None:
    by_layers = PLANS.by_layers()
    assert by_layers == DrawnCut("as many layers", ((0,), (1,), (2,), (3,)), (2, 4, 6), 8)
    plan = PLANS.plan(by_layers)
    assert layers(plan) == [2, 2, 2, 2] and plan.micro_batches == 8


def test_cuts_at_random_use_each_rank_once_and_are_the_same_again() -> None:
    cuts = list(PLANS.at_random(DIVISIONS, 0, 20))
    assert cuts == list(PLANS.at_random(DIVISIONS, 0, 20))
    assert all(sorted(sum(cut.ranks, ())) == [0, 1, 2, 3] for cut in cuts)
    assert {tuple(sorted(cut.ranks)) for cut in cuts} == set(DIVISIONS)
    assert len({cut.ranks for cut in cuts}) > 4
    plan = PLANS.plan(cuts[0])
    assert tuple(part.ranks for part in plan.parts) == cuts[0].ranks
    ends = (0, *cuts[0].layers, 8)
    assert layers(plan) == [b - a for a, b in itertools.pairwise(ends)]


def test_ours_is_the_fastest_as_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_plans, "BUDGET_S", Budget(evaluations=1000))
    plans = MixedPlans(transformer(layers=4, batch=8), PLANS.cluster, KINDS)
    cuts = [plans.by_layers(), *plans.at_random(DIVISIONS, 0, 3)]
    assert plans.ours().estimate.step_s < min(plans.plan(cut).estimate.step_s for cut in cuts)
