"""Predictions of single layouts."""

from __future__ import annotations

from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.step_cost import StepPrices
from autoddl.perfmodel.timeline import Prediction, StepTimeline
from autoddl.sbp.layout import Layout
from autoddl.sbp.mesh import Mesh


def predict(mesh: Mesh, profile: Profile, layout: Layout) -> Prediction:
    """Return what a step takes in which ops and boxings overlap as Profile.overlap says.

    Raises:
        AutoDDLError: as StepPrices.step.
    """
    return StepTimeline(StepPrices(layout.program, mesh, profile), layout).prediction
