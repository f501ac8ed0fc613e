"""What is certain of a plan: how far from the best it may be, and from which plans it can't be told.

Errors of a calibration are those of its kernels and links. What two plans have in common of one source
cancels out: of 10 ms in all-gathers ± 10 % against 12 ms the difference is 2 ± 0.2 ms.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from autoddl.explain.reopened import Reopened
from autoddl.perfmodel.timeline import MODEL_ERROR
from autoddl.plan.value import PlanValue
from autoddl.planner.whole.assigned import Assigned
from autoddl.search.baselines import assignments


@dataclass(frozen=True)
class Certainty:
    """The gap of the search, and the seconds by which a step may be off.

    `tied` are plans that the search compared with from which the calibration can't tell it, `clear` the
    others; each with how many seconds more it takes.
    """

    gap: float
    lower_bound_s: float
    uncertainty_s: float
    tied: tuple[tuple[str, float], ...]
    clear: tuple[tuple[str, float], ...]


class SourceError(NamedTuple):
    """The seconds that a step takes of one kernel or link, and by how many these may be off."""

    source: str
    seconds: float
    off_s: float


def source_errors(found: Reopened) -> tuple[SourceError, ...]:
    """Return where the prices of a step come from, the largest error first."""
    cost = found.chosen.timeline.cost
    seconds, off_s = defaultdict[str, float](float), cost.off_s
    for part in cost:
        for price in part.rows():
            seconds[price.source] += price.seconds
    every = (SourceError(name, seconds[name], off_s[name]) for name in seconds if seconds[name])
    return tuple(sorted(every, key=lambda each: -each.off_s))


def certainty(plan: PlanValue, found: Reopened | None = None) -> Certainty:
    """Return what is certain of a plan; with prices baselines are told apart source by source."""
    step_s, off_s = plan.estimate.step_s, plan.estimate.uncertainty_s
    rivals = {} if found is None else assignments(found.problem)
    tied, clear = list[tuple[str, float]](), list[tuple[str, float]]()
    for row in plan.baselines:
        if found is not None and row.name in rivals:
            rival = Assigned(found.problem, rivals[row.name])
            more_s, alike = rival.step_s - found.chosen.step_s, are_tied(found.chosen, rival)
        else:
            more_s = row.step_s - step_s
            alike = abs(more_s) <= off_s
        (tied if alike else clear).append((row.name, more_s))
    for each in plan.search.outcomes:
        if each.step_s is not None and each.mesh != plan.mesh.describe():
            more_s = each.step_s - step_s
            told = f"the best plan on mesh {each.mesh}", more_s
            (tied if abs(more_s) <= off_s else clear).append(told)
    return Certainty(plan.search.gap, plan.search.lower_bound_s, off_s, tuple(tied), tuple(clear))


def are_tied(one: Assigned, other: Assigned) -> bool:
    """Tell whether the calibration can't tell which of two steps is shorter."""
    off, theirs = (each.timeline.cost.off_s for each in (one, other))
    more_s = other.step_s - one.step_s
    sources = {*off, *theirs}
    apart = [off.get(source, 0.0) - theirs.get(source, 0.0) for source in sources]
    return abs(more_s) <= math.hypot(*apart, MODEL_ERROR * more_s)
