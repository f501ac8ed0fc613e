"""Plans with stages that no search has found: parts, their states and cuts are given."""

from __future__ import annotations

from collections.abc import Sequence

from autoddl.perfmodel.profile import Profile
from autoddl.plan.value import PlanValue
from autoddl.planner.assemble import staged_plan
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.stage_moves import StagePart
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.sbp.mesh import Cluster
from autoddl.sbp.program.forward_positions import positions
from autoddl.search.result import SearchResult


def staged_by_hand(
    parts: Sequence[StagePart], micro_batches: int, profile: Profile, cluster: Cluster,
    bounds: Sequence[int] = (), *, name: str = "by hand",
) -> PlanValue:  # fmt: skip
    """Return the plan of parts in the order of its stages, which are for one micro-batch each.

    All but the first begin at these `bounds`, positions of the forward pass, by default so that all have
    equally many.
    """
    found, stages = positions(parts[0].assigned.problem.program), len(parts)
    cuts = bounds or [found.count * n // stages for n in range(1, stages)]
    staged = Staged(parts, found, cuts, micro_batches, Links(profile, cluster))
    result = SearchResult(name, parts[0].assigned.assignment, 0.0, 0.0, 0, ())
    return staged_plan(staged, result)
