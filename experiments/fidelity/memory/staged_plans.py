"""Plans with a stage on each of some meshes, in the states of a baseline or in random ones.

`2/2x2` has 2 devices before 4: the forward pass of each stage has equally many ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from autoddl.api import Plan
from autoddl.perfmodel.profile import Profile
from autoddl.planner.stages.stage_moves import StagePart
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.baselines import BASELINES
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment
from experiments.lib import oneflow_problems as builder
from experiments.lib.staged_by_hand import staged_by_hand

MICRO_BATCHES = 4
Choice = Callable[[CostNetwork], Assignment | None]


class StagedPlans:
    """The plans of a program on stages of these meshes, whose devices follow each other."""

    def __init__(self, program: Program, meshes: Sequence[str], profile: Profile) -> None:
        micro = micro_batch(program, MICRO_BATCHES)
        shapes = [Mesh.parse(text, profile.levels) for text in meshes]
        self.problems = [  # as OneFlow runs boxings of CUDA devices where there are micro-batches
            builder.build(micro, mesh, profile, compute_stream=True) for mesh in shapes
        ]
        ends = [sum(mesh.size for mesh in shapes[:n]) for n in range(len(shapes) + 1)]
        self.ranks = [tuple(range(*pair)) for pair in pairwise(ends)]
        self.profile, self.cluster = profile, Cluster.parse(str(ends[-1]), profile.levels)

    def plan(self, name: str, choice: Choice) -> Plan | None:
        """Return the plan that has what `choice` gives each stage; None where that is nothing for all.

        Where it is nothing for one, that stage is data parallel.
        """
        chosen = [choice(problem) for problem in self.problems]
        if not any(chosen):
            return None
        parts = []
        for problem, assignment, ranks in zip(self.problems, chosen, self.ranks, strict=True):
            held = assignment or BASELINES["data parallel"](problem)
            assert held is not None, name
            parts.append(StagePart(Assigned(problem, held), ranks))
        made = staged_by_hand(parts, MICRO_BATCHES, self.profile, self.cluster, name=name)
        return Plan.of(made)
