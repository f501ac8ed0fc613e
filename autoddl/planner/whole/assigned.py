"""An assignment of a problem: what it stands for and costs, computed when it is asked for."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from autoddl.engine.model import MemoryEstimate
from autoddl.perfmodel.timeline import Prediction, StepTimeline
from autoddl.plan.parts import Estimate
from autoddl.sbp.layout import Layout
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.assigned.simulated_steps import SimulatedSteps, may_be_ordered
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment, Point

ROUNDING = 1e-9  # of a step: less is no overlap


class Assigned:
    """An assignment of a problem; what it stands for and costs is computed when it is asked for."""

    def __init__(self, problem: CostNetwork, assignment: Point) -> None:
        self.problem, self.assignment = problem, Assignment.of(assignment)

    @cached_property
    def layout(self) -> Layout:
        """Return the states of all tensors, and the order of the ops."""
        return replace(self.timeline.layout, after=self.timeline.after)

    @property
    def prediction(self) -> Prediction:
        """Return what its step costs, and takes when ops and boxings overlap."""
        return self.timeline.prediction

    @cached_property
    def timeline(self) -> StepTimeline:
        """Return when everything of a step runs."""
        problem = self.problem
        return StepTimeline(
            problem.setting.prices, assigned_layout(problem, self.assignment),
            overlaps=not problem.compute_stream, orders=problem.derived(may_be_ordered),
        )  # fmt: skip

    @cached_property
    def memory(self) -> MemoryEstimate:
        """Return the memory of the device with least to spare, whole (CostNetwork sums up a part)."""
        memory, compute_stream = self.problem.setting.memory, self.problem.compute_stream
        return memory.estimate(self.layout, compute_stream=compute_stream)

    @property
    def memory_bytes(self) -> int:
        """Return all bytes of it, as they count against the memory of the smallest device."""
        return self.memory.counted

    @cached_property
    def costs_s(self) -> tuple[float, float]:
        """Return the seconds of compute and of communication."""
        problem = self.problem
        return problem.compute_s(self.assignment), problem.communication_s(self.assignment)

    @cached_property
    def step_s(self) -> float:
        """Return the seconds of a step: compute plus communication, less what overlaps."""
        problem = self.problem
        if problem.compute_stream:
            return sum(self.costs_s)
        return problem.derived(SimulatedSteps).step_s(self.assignment)

    def estimate(self, name: str) -> Estimate:
        """Return a row for the table; launches that collectives share spare seconds as overlap does."""
        spared_s = math.fsum((*self.costs_s, -self.step_s))
        return Estimate(
            name, *self.costs_s, self.memory.total, uncertainty_s=self.prediction.uncertainty_s,
            overlap_s=spared_s if spared_s > ROUNDING * self.step_s else 0.0, room=self.memory.room,
        )  # fmt: skip
