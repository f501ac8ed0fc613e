"""Predict the step time of a plan from its program and a profile."""

from __future__ import annotations

from pathlib import Path

import autoddl
from autoddl.make_plan import layout_of
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.step import StepCost, step_cost
from autoddl.sbp.program import Program


def predicted(program: Program, file: Path, profile: Profile) -> StepCost:
    """Return what a step under the plan in `file` costs."""
    plan = autoddl.load(file)
    return step_cost(program, plan.mesh, profile, layout_of(plan))
