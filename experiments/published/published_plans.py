"""The plan of given degrees of data, tensor and pipeline parallelism, and what it is predicted to take.

Stages have as many layers each. Boxings are ops of the compute stream where there is tensor parallelism,
as LiBai sets it, or there are several micro-batches, as the engine does: a plan of 8x1x1 with one
micro-batch overlaps its all-reduces with the backward pass, one of 4x2x1 does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.rules.batchnorm import LOCAL_STATISTICS
from autoddl.sbp.rules.dropout import LOCAL_MASKS
from autoddl.search.baselines import BASELINES
from autoddl.search.baselines.held_states import best
from autoddl.search.baselines.megatron import tensor_parallel
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment
from experiments.lib.layer_cuts import equal_layers
from experiments.lib.oneflow_problems import build
from experiments.published.published_rows import Degrees

# What was run ran, on versions that need not refuse what that of the model refuses.
ENGINE = replace(ONEFLOW.whole_space(), collectives=ONEFLOW.collectives)
LOCAL = frozenset({LOCAL_STATISTICS, LOCAL_MASKS})  # as in all data-parallel training

Layout = Callable[[CostNetwork], Assignment | None]


class PlanCost(NamedTuple):
    """Seconds of a step, those of its parts, and bytes on the device that needs most."""

    step_s: float
    compute_s: float
    communication_s: float
    memory_bytes: int


def predicted(
    part: Program,
    degrees: Degrees,
    micro_batches: int,
    profile: Profile,
    layout: Layout | None = None,
) -> PlanCost:
    """Return what a step takes of the program of one micro-batch.

    `layout` gives the assignment on the mesh of a stage; by default it is data parallelism and, on the
    last axis, Megatron's tensor parallelism.

    Raises:
        AutoDDLError: the layout does not apply to the program on that mesh.
    """
    stream = degrees.tp > 1 or micro_batches > 1
    problem = build(
        part, degrees.mesh, profile, compute_stream=stream, engine=ENGINE,
        allow=LOCAL,
    )  # fmt: skip
    assignment = (layout or _by_hand(degrees))(problem)
    if assignment is None:
        raise AutoDDLError(f"layout: none for degrees {degrees} on mesh {degrees.mesh}")
    whole = Assigned(problem, assignment)
    found: Assigned | Staged = whole
    if micro_batches > 1 or degrees.pp > 1:
        bounds = equal_layers(part, degrees.pp)
        links = Links(profile, degrees.cluster)
        found = Staged.equal(whole, positions(part), bounds, micro_batches, links)
    cost = found.estimate("published")
    return PlanCost(cost.step_s, cost.compute_s, cost.communication_s, cost.memory_bytes)


def _by_hand(degrees: Degrees) -> Layout:
    if degrees.tp == 1:
        return BASELINES["data parallel"]
    last = degrees.mesh.ndim - 1
    return partial(best, family=partial(tensor_parallel, choices=((last,),)))
