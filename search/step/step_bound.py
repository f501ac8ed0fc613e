"""A bound on every step: a mixture of simple ones, weighted so that it is as high as it gets.

The bound of a mixture (bound_network.py) is concave in its weights, and each assignment is a plane
above it. So the next weights are those at which the least of all planes is highest, until the bound
meets them.

    planes (device 4, links 1) and (2, 5): they meet at weights (2/3, 1/3), at 3; a solution there of 2.9
    proves 2.9, and no other weights give more than 3.

Source: Kelley 1960 (cutting planes); Geoffrion 1974 (Lagrangian duals as concave maxima).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from autoddl.perfmodel.resources import SERIAL
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.search.network.cost_network import CostNetwork, Floats
from autoddl.search.result import SearchResult
from autoddl.search.step import tuning
from autoddl.search.step.bound_network import Kind, Mixture, StepBounds
from autoddl.search.step.dependency_path import EARLY, EITHER, LATE

WINDOWS = EARLY, LATE


class StepBound:
    """The best bound so far, and the planes above it."""

    def __init__(self, bounds: StepBounds) -> None:
        self.bounds = bounds
        self.planes: list[Floats] = []
        self.bound_s = 0.0

    def cut(self, timeline: StepTimeline) -> None:
        """Take in the plane of an assignment."""
        self.planes.append(self.bounds.of(timeline))

    def weights(self) -> tuple[dict[Kind, float], float]:
        """Return the weights at which the least of all planes is highest, and how high that is.

        Those of a window add up to 1; what may run in several weighs no more than in any of them.
        """
        from scipy.optimize import linprog  # takes time to load

        kinds, planes = self.bounds.kinds, np.array(self.planes)
        place = {kind: number for number, kind in enumerate(kinds)}
        windows = [[float(span == window) for span, _ in kinds] + [0.0] for window in WINDOWS]
        no_more = np.zeros((0, len(kinds) + 1))
        for window, resource in product(WINDOWS, self.bounds.resources):
            row = np.zeros(len(kinds) + 1)
            row[place[EITHER, resource]], row[place[window, resource]] = 1.0, -1.0
            no_more = np.vstack([no_more, row])
        least = [0.0 if resource == SERIAL else tuning.LEAST_WEIGHT for _, resource in kinds]
        found = linprog(
            np.append(np.zeros(len(kinds)), -1.0),
            A_ub=np.vstack([np.hstack([-planes, np.ones((len(planes), 1))]), no_more]),
            b_ub=np.zeros(len(planes) + len(no_more)), A_eq=windows, b_eq=np.ones(len(windows)),
            bounds=[*[(low, 1.0) for low in least], (None, None)],
        )  # fmt: skip
        return dict(zip(kinds, found.x[:-1].tolist(), strict=True)), float(found.x[-1])

    def rise(self, solve: Callable[[CostNetwork], SearchResult | None]) -> Iterator[SearchResult]:
        """Raise the bound, weights by weights, as long as networks are solved; yield what solves each."""
        before: dict[Kind, float] = {}
        for _ in range(tuning.MIXTURES):
            weights, most_s = self.weights()
            if most_s <= self.bound_s * (1 + tuning.MET) or weights == before:
                return
            mixture, before = Mixture(self.bounds, weights), weights
            found = solve(mixture.network)
            if found is None:
                return
            self.bound_s = max(self.bound_s, found.lower_bound_s)
            self.planes.append(mixture.plane(found.assignment))
            yield found
