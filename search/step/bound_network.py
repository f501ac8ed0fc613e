"""Bounds on a step that are sums over variables and factors, and the network of a mixture of them.

A resource does one thing at a time, so a step takes at least what each is busy in all (`all`). What is
behind the head of a dependency path can't begin before that is over, so it takes at least the head and
what the device is busy behind it (`late`). And it takes what the whole path takes (`path`). Each is a
sum of seconds that an assignment decides one by one. So for weights ≥ 0 of these bounds, which add up
to 1, the cheapest assignment of the network below bounds the step of every assignment.

    head 5 ms, device 9 ms behind it and 14 ms in all, path 12 ms: max(14, 14, 12) ms; with a boxing of 2
    ms in the head the device is as busy, and the second bound is 16 ms.

Of a tensor on the path only the reader on the path counts, if the path has a weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from autoddl.engine.limits import ONEFLOW_LIMITS, Limits
from autoddl.perfmodel.redistribution import Redistributor
from autoddl.perfmodel.resources import DEVICE, SERIAL
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.search.network.cost_network import CostNetwork, Floats, Ints, as_ints
from autoddl.search.network.evaluator import Flags, paid_of, unary_of
from autoddl.search.reductions.prices import Prices
from autoddl.search.reductions.retabulated import table
from autoddl.search.result import Point
from autoddl.search.step.dependency_path import HEAD, OFF, TAIL, DependencyPath

# Of the weights; a path that weighs less leaves a tensor all its readers. Half and twice are the same.
COUNTS = 0.05
ALL, LATE, PATH = "all", "late", "path"
Kind: TypeAlias = tuple[str, str]
"""One of the bounds: ALL with a resource, LATE with DEVICE, or PATH with SERIAL."""


class StepBounds:
    """The bounds along one dependency path: by kind, what an assignment makes of them.

    `limits` are those of the engine that the network was built for.
    """

    def __init__(
        self, network: CostNetwork, path: DependencyPath, *, limits: Limits = ONEFLOW_LIMITS
    ) -> None:
        self.network, self.path, self.limits = network, path, limits
        levels = dict.fromkeys(axis.level for axis in network.mesh.axes)
        self.resources = (DEVICE, *levels)
        self.kinds: tuple[Kind, ...] = (
            *[(ALL, resource) for resource in self.resources], (LATE, DEVICE), (PATH, SERIAL),
        )  # fmt: skip

    def of(self, timeline: StepTimeline) -> Floats:
        """Return all bounds on the step of an assignment."""
        every = np.ones(len(self.path.late) + 1, dtype=np.bool_)
        busy = timeline.busy_s(every[:-1], every)
        late_s = timeline.busy_s(self.path.late, self.path.starts_late)[DEVICE]
        own = [busy.get(resource, 0.0) for resource in self.resources]
        return np.array([*own, self.path.head_s(timeline) + late_s, self.path.all_s(timeline)])

    def mixed(self, weights: Mapping[Kind, float]) -> Mixture:
        """Return the network whose cheapest assignment bounds every step."""
        network, path = self.network, self.path
        head = sum(weight for (kind, _), weight in weights.items() if kind != ALL)
        of_place = np.array([0.0, weights[PATH, SERIAL], head])  # OFF, TAIL, HEAD
        of_op = of_place[path.places] + weights[ALL, DEVICE] + path.late * weights[LATE, DEVICE]
        ops = network.timed_ops
        place, mine = path.places_of(network.factors, ops)
        counted = np.where(of_place[place] > COUNTS, place, OFF)
        factors = network.factors.reading(mine | (counted == OFF)[network.factors.factor])
        late = path.starts_late[network.program.columns.maker[factors.tensor]]
        keys, which = np.unique([factors.table, late, counted], axis=1, return_inverse=True)
        priced: dict[tuple[int, int], Redistributor] = {}
        tables = []
        for number, *kind in keys.T.tolist():
            if tuple(kind) not in priced:
                is_late, at = kind
                own = {resource: weights[ALL, resource] for resource in self.resources}
                own[DEVICE] += is_late * weights[LATE, DEVICE]
                priced[is_late, at] = Redistributor(
                    network.mesh, network.profile, any_order=self.limits.any_order,
                    weights=own | {SERIAL: float(of_place[at])},
                )  # fmt: skip
            tables.append(table(network, number, priced[kind[0], kind[1]]))
        factors = factors._replace(tables=tables, table=which.reshape(-1))
        device = np.where(ops >= 0, of_op[ops], 0.0)
        found = Prices(device=device).apply(replace(network, factors=factors))
        return Mixture(self, found, late, place)


@dataclass(frozen=True, eq=False)
class Mixture:
    """A network of mixed bounds; of its factors `late` and `place` say when boxings come, and where."""

    bounds: StepBounds
    network: CostNetwork
    late: Flags
    place: Ints

    def plane(self, point: Point) -> Floats:
        """Return at least what each bound is of an assignment with the boxings that are cheapest here.

        Of a tensor on the path all readers count where the path has no weight.
        """
        bounds, path, ops = self.bounds, self.bounds.path, self.bounds.network.timed_ops
        compute_s = np.zeros(len(path.late) + 1)
        whole, network = bounds.network.arrays, self.network
        compute_s[ops] = unary_of(whole, as_ints(point))[0]
        compute_s = compute_s[:-1]
        paid, _ = paid_of(network.arrays, as_ints(point)).first(network.arrays)
        parts = {r: np.zeros(len(paid.factor)) for r in bounds.resources}
        which = network.factors.table[paid.factor]
        for number in np.unique(which).tolist():
            mine = np.flatnonzero(which == number)
            for resource, seconds in network.factors.tables[number].parts.items():
                parts[resource][mine] = seconds[paid.made[mine], paid.wanted[mine]]
        late, place = self.late[paid.factor], self.place[paid.factor]
        serial = np.sum(list(parts.values()), axis=0)
        head = compute_s[path.places == HEAD].sum() + serial[place == HEAD].sum()
        tail = compute_s[path.places == TAIL].sum() + serial[place == TAIL].sum()
        busy = {resource: seconds.sum() for resource, seconds in parts.items()}
        busy[DEVICE] += compute_s.sum()
        behind = parts[DEVICE][late].sum() + compute_s[path.late].sum()
        return np.array([*busy.values(), head + behind, head + tail])
