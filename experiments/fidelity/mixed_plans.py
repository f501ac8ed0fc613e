"""Plans with stages to hold against ours: as many layers in each, and cuts at random.

A cut says which ranks each stage has, in the order of the stages, at which layer stages begin, and how
many micro-batches there are; states are those of data parallelism. It is priced on the devices that are
there. Of 12 layers on two fast and two slow ranks as many in each stage are

    DrawnCut("as many layers", ranks=((0,), (1,), (2,), (3,)), layers=(3, 6, 9), micro_batches=8)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

import autoddl
from autoddl.perfmodel.profile import Profile
from autoddl.plan.value import PlanValue
from autoddl.planner.stages.stage_moves import StagePart
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.baselines import assignments
from experiments.lib.layer_cuts import even_layers, layer_begins
from experiments.lib.oneflow_problems import build
from experiments.lib.staged_by_hand import staged_by_hand

Division = tuple[tuple[int, ...], ...]
LAYERS = "as many layers"
RULE_COUNT = 8  # micro-batches of this cut: twice the stages
COUNTS = (2, 4, 8)
BUDGET_S = 10.0


@dataclass(frozen=True)
class DrawnCut:
    """Stages by their ranks, and the layer with which each but the first one begins."""

    name: str
    ranks: Division
    layers: tuple[int, ...]
    micro_batches: int


@dataclass(frozen=True)
class MixedPlans:
    """Plans of a program for a cluster, of two kinds of devices or of devices that are alike."""

    program: Program
    cluster: Cluster
    profile: Profile

    def ours(self) -> PlanValue:
        """Return the plan that knows the kinds."""
        return autoddl.optimize(
            self.program, cluster=self.cluster, profile=self.profile, pipeline="auto",
            budget=BUDGET_S,
        )  # fmt: skip

    def plan(self, cut: DrawnCut) -> PlanValue:
        """Return the plan of a cut."""
        micro = micro_batch(self.program, cut.micro_batches)
        parts = []
        for ranks in cut.ranks:
            kinds = {self.cluster.kind(rank) for rank in ranks} - {""}
            mesh = Mesh.parse(f"[gpu {len(ranks)}]", self.profile.levels)
            problem = build(micro, mesh, self.profile.part(kinds))
            parts.append(StagePart(Assigned(problem, assignments(problem)["data parallel"]), ranks))
        bounds = [self.begins[layer] for layer in cut.layers]
        return staged_by_hand(parts, cut.micro_batches, self.profile, self.cluster, bounds)

    @cached_property
    def begins(self) -> list[int]:
        """Return the positions at which layers begin."""
        return layer_begins(self.program)

    def by_layers(self) -> DrawnCut:
        """Return the cut into a stage for each rank with as many layers in each."""
        ranks = tuple((rank,) for rank in range(self.cluster.size))
        return DrawnCut(LAYERS, ranks, even_layers(len(self.begins), len(ranks)), RULE_COUNT)

    def at_random(self, divisions: Sequence[Division], seed: int, count: int) -> Iterator[DrawnCut]:
        """Yield so many cuts into some of the divisions, in any order of the stages."""
        draw = np.random.default_rng(seed)
        for number in range(count):
            division = divisions[draw.integers(len(divisions))]
            ranks = tuple(division[n] for n in draw.permutation(len(division)))
            inner = np.arange(1, len(self.begins))
            layers = np.sort(draw.choice(inner, len(ranks) - 1, replace=False))
            micro_batches = int(draw.choice(COUNTS))
            yield DrawnCut(f"random {number}", ranks, tuple(map(int, layers)), micro_batches)
