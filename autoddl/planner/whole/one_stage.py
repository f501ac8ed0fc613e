"""A whole step: one stage, through which the batch goes as one, and where ops and boxings overlap."""

from __future__ import annotations

from autoddl.engine.model import MemoryEstimate
from autoddl.plan.parts import Estimate
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.stage_moves import StagePart
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.layout import Layout
from autoddl.sbp.program.forward_positions import positions


class OneStage(Staged):
    """An assignment as the only stage: its step is simulated op by op, its memory that of a step."""

    def __init__(self, assigned: Assigned) -> None:
        problem = assigned.problem
        part = StagePart(assigned, tuple(range(problem.mesh.size)))
        links = Links(problem.profile, problem.mesh.cluster)
        super().__init__([part], positions(problem.program), (), 1, links)

    @property
    def whole(self) -> Assigned:
        """Return the assignment."""
        return self.assigned(0)

    @property
    def memory(self) -> tuple[MemoryEstimate, ...]:
        """Return the memory of the device that has least to spare."""
        return (self.whole.memory,)

    def stage_layout(self, stage: int) -> Layout:
        """Return the states of all tensors, and the order of the ops."""
        return self.whole.layout

    def estimate(self, name: str) -> Estimate:
        """Return what a step takes on each device."""
        return self.whole.estimate(name)
