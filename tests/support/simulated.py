"""Predictions of single layouts."""

from __future__ import annotations

from autoddl.perfmodel.pipeline.pipeline_timeline import Timeline
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


def simulated_tasks(timeline: Timeline) -> list[list[str]]:
    """Return by stage the tasks that take time, in the order in which a simulation runs them."""
    found: list[list[tuple[float, float, str]]] = [[] for _ in timeline.in_flight]
    for span in timeline.spans:
        ends = span.stream.split("→")
        if len(ends) == 1:
            name = "AG" if span.name == "once" else span.name
            found[span.stage].append((span.start_s, span.end_s, name))
        else:
            name, (source, target) = span.name.split()[0], map(int, ends)
            found[source].append((span.start_s, span.end_s, f"{name}>{target}"))
            found[target].append((span.start_s, span.end_s, f"{name}<{source}"))
    return [list(dict.fromkeys(name for *_, name in sorted(mine))) for mine in found]
