"""What kinds of nodes the ranks are on, as `autoddl run --kind` tells them, and what a plan is for."""

from __future__ import annotations

import os

from autoddl.engine.oneflow.run.agree import text_of, world_size
from autoddl.errors import AutoDDLError
from autoddl.launch.job import KIND
from autoddl.plan.value import PlanValue


def check_kinds(plan: PlanValue) -> None:
    """Raise AutoDDLError on all ranks where one says that it is on a node of another kind than planned.

    Of plans for devices that are all alike nothing is asked, nor of ranks that were told no kind.
    """
    planned = {rank: part.kinds for part in plan.parts for rank in part.ranks}
    if not any(planned.values()) or world_size() == 1:
        return
    own = os.environ.get(KIND, "")
    told = [text_of(rank, own) for rank in range(world_size())]
    for rank, kind in enumerate(told):
        if kind and kind not in planned[rank]:
            raise AutoDDLError(
                f"plan: rank {rank} is on a node of kind {kind}, where the plan has "
                f"{' or '.join(planned[rank])}; start the nodes in the order of the plan's cluster "
                "(--node-rank), or plan for the order in which they are"
            )
