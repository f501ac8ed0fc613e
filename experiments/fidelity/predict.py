"""Predict the step time of a plan from its program and a profile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import autoddl
from autoddl.make_plan import layout_of
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.step import StepCost, step_cost
from autoddl.perfmodel.timeline import overlapped_s
from autoddl.sbp.program import Program


@dataclass(frozen=True)
class Prediction:
    """The cost of a step op by op, and its seconds when ops and boxings overlap."""

    cost: StepCost
    step_s: float


def predicted(program: Program, file: Path, profile: Profile) -> Prediction:
    """Return what a step under the plan in `file` takes."""
    plan = autoddl.load(file)
    layout = layout_of(plan)
    cost = step_cost(program, plan.mesh, profile, layout)
    return Prediction(cost, overlapped_s(program, plan.mesh, profile, layout, cost))
