"""Redistribution: the cheapest path of boxings between any two states of a tensor.

Shortest paths between all plain states at once (Floyd–Warshall), and one by one for others (Dijkstra). If
(S0, B) → (B, B) takes 5 ms and (B, B) → (B, S0) 1 ms, and no boxing leads from (S0, B) to (B, S0) in less
than 6 ms, that is its path: two boxings, over (B, B).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import floyd_warshall

from autoddl.engine.model import CollectiveQueue, EngineModel, StreamUse
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.boxing_prices import BoxingPrices
from autoddl.perfmodel.boxing_steps import BoxingSteps, does_run, neighbours, steps_between
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.resources import SERIAL
from autoddl.sbp.boxing import Boxing, boxing
from autoddl.sbp.canonical import canonical, strided_states
from autoddl.sbp.layout import Path
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.shards import all_states, local_shape
from autoddl.sbp.state import NdSbp, Sbp, axis_states

Floats = npt.NDArray[np.float64]
Strided = tuple[tuple[Sbp, ...], ...]
"""By axis the cuts with strides that tensors have beside plain ones; () for none."""
_Key = tuple[tuple[int, ...], int, bool, Strided]

# In a queue one collective is taken though several would take half as long: the second of these goes
# behind all whose order is that of the first (launch_queue), so gradients would be sent after the last.
# Published runs are met as well with 2.5; with 1 efficiency on 32 devices is 8 points too low.
AT_ONCE = 2.0


class _Boxings(NamedTuple):
    """The boxings between all plain states of a tensor, and what each takes."""

    states: tuple[NdSbp, ...]
    steps: BoxingSteps
    seconds: Floats
    looks: Sequence[tuple[Boxing, float]]
    """A boxing of each look of the steps, with its seconds."""

    def parts(self, prices: BoxingPrices, item_bytes: int) -> dict[str, Floats]:
        """Return how many of the seconds are spent on each resource, at least."""
        found: dict[str, Floats] = {}
        for number, (step, seconds) in enumerate(self.looks):
            for resource, part_s in prices.least_parts(prices.way(step, item_bytes), seconds):
                found.setdefault(resource, np.zeros(len(self.looks)))[number] = part_s
        return {resource: part_s[self.steps.look] for resource, part_s in found.items()}


@dataclass(frozen=True, eq=False)
class RedistributionTable:
    """Costs and paths between all plain states of tensors of one shape, and those `strided` by axis.

    `cost[i, j]` is in seconds from `states[i]` to `states[j]`; `hop[i, j]` is the state after the
    first step. Where seconds are weighted, `parts` has those of each resource on the same paths.
    """

    shape: tuple[int, ...]
    states: tuple[NdSbp, ...]
    cost: Floats
    hop: npt.NDArray[np.int32]
    strided: Strided = ()
    parts: Mapping[str, Floats] = field(default_factory=dict, repr=False)
    _paths: dict[tuple[NdSbp, NdSbp], Path] = field(default_factory=dict, repr=False)

    @cached_property
    def index(self) -> dict[NdSbp, int]:
        """Return the position of every state."""
        return {state: i for i, state in enumerate(self.states)}

    @property
    def no_sums(self) -> Sequence[NdSbp]:
        """Return the states in which the tensor is no partial sum."""
        return [state for state in self.states if not any(sbp.is_partial for sbp in state)]

    def path(self, src: NdSbp, dst: NdSbp) -> Path:
        """Return the states after each step, ending in `dst`; empty where nothing changes.

        Raises:
            AutoDDLError: one of the states does not cut the tensor evenly.
        """
        if (src, dst) in self._paths:
            return self._paths[src, dst]
        for state in (src, dst):
            if state not in self.index:
                raise AutoDDLError(f"state {state} does not cut shape {self.shape} evenly")
        here, goal = self.index[src], self.index[dst]
        steps = []
        if np.isinf(self.cost[here, goal]):
            raise AutoDDLError(
                f"redistribution of {src} to {dst} of shape {self.shape}: no way; values that differ "
                "between devices (B*) stay as they are"
            )
        while here != goal:
            here = int(self.hop[here, goal])
            steps.append(self.states[here])
        self._paths[src, dst] = tuple(steps)
        return self._paths[src, dst]


class Redistributor:
    """Price redistributions on one mesh under one profile; tables are cached by shape.

    Paths have the boxings that run in this use of the engine's `streams`, by default the usual one;
    tables have the states that its axes can cut in. With `weights` of resources (Profile.parts), and of
    seconds on whichever (SERIAL), tables have the weighted seconds, and the paths that are cheapest under
    them; in a `queue` the seconds of resources are the least that a collective may take, and without
    weights one collective is taken where several are not much cheaper (AT_ONCE).
    """

    def __init__(
        self, mesh: Mesh, profile: Profile, engine: EngineModel, streams: StreamUse | None = None,
        *, weights: Mapping[str, float] | None = None, queue: CollectiveQueue | None = None,
    ) -> None:  # fmt: skip
        self.mesh, self.profile, self.weights = mesh, profile, weights
        self.engine, self.streams = engine, streams or engine.streams[0]
        self.boxings = BoxingPrices(mesh, profile, queue)
        self._boxings: dict[_Key, _Boxings] = {}
        self._tables: dict[_Key, RedistributionTable] = {}
        self._other: dict[tuple[tuple[int, ...], int, NdSbp, NdSbp], Path] = {}
        self._known_steps: dict[
            tuple[tuple[int, ...], int, NdSbp, bool], list[tuple[NdSbp, float]]
        ] = {}

    def weighted(self, weights: Mapping[str, float]) -> Redistributor:
        """Return one with these weights, which shares the seconds of boxings."""
        found = Redistributor(
            self.mesh, self.profile, self.engine, self.streams, weights=weights, queue=self.boxings.queue
        )  # fmt: skip
        found._boxings = self._boxings
        return found

    def table(
        self, shape: tuple[int, ...], item_bytes: int, *, own: bool = False, strided: Strided = ()
    ) -> RedistributionTable:
        """Return the table of tensors with this logical shape and element size in bytes.

        With `own` it has the states of values that differ between devices, too; they stay among
        themselves, at infinite cost to any other. `strided` cuts are those of each axis alone
        (sbp.canonical.strided_states).
        """
        key = (shape, item_bytes, own, strided)
        if key not in self._tables:
            self._tables[key] = self._build(key)
        return self._tables[key]

    def path(self, shape: tuple[int, ...], item_bytes: int, src: NdSbp, dst: NdSbp) -> Path:
        """Return the cheapest path between any two states: the states after each step.

        Plain even states come from the table; uneven shards, strides, other orders and P(max|min)
        are searched for one by one and remembered. The last state is the canonical form of `dst`.

        Raises:
            AutoDDLError: a tensor of this shape can't be in one of the states, or there is no way (a
                sum can't become a maximum).
        """
        table = self.table(shape, item_bytes)
        if src in table.index and dst in table.index:
            return table.path(src, dst)
        key = (shape, item_bytes, src, dst)
        if key not in self._other:
            start, goal = (canonical(state, shape, self.mesh.cuts) for state in (src, dst))
            plain = start in table.index and goal in table.index
            self._other[key] = (
                table.path(start, goal) if plain else self._search(shape, item_bytes, start, goal)
            )
        return self._other[key]

    def seconds(self, shape: tuple[int, ...], item_bytes: int, src: NdSbp, dst: NdSbp) -> float:
        """Return what the path between two states takes.

        Raises:
            AutoDDLError: as `path`, for states that are in no table.
        """
        table = self.table(shape, item_bytes)
        if src in table.index and dst in table.index:
            return float(table.cost[table.index[src], table.index[dst]])
        states = (src, *self.path(shape, item_bytes, src, dst))
        steps = (
            boxing(*pair, shape, self.mesh.cuts, uneven=True) for pair in itertools.pairwise(states)
        )
        return sum(self._price(step, item_bytes) for step in steps if step is not None)

    def _price(self, step: Boxing, item_bytes: int) -> float:
        """Return what one boxing counts."""
        seconds = self.boxings.step_s(step, item_bytes)
        if self.weights is None or math.isinf(seconds):
            return seconds
        parts = self.boxings.least_parts(self.boxings.way(step, item_bytes), seconds)
        return self.weights[SERIAL] * seconds + sum(self.weights[r] * s for r, s in parts)

    def _build(self, key: _Key) -> RedistributionTable:
        shape, item_bytes, _, strided = key
        one = self._between_all(key)
        count, steps = len(one.states), one.steps
        direct = np.full((count, count), np.inf)
        split = {} if self.weights is None else one.parts(self.boxings, item_bytes)
        direct[steps.after, steps.before] = self._weighted(one.seconds, split)
        # SciPy takes zeros for missing edges, masked or not, and unmasked all that is next to nothing,
        # which is what is free costs here.
        direct = np.maximum(direct, np.finfo(float).tiny)
        np.fill_diagonal(direct, 0.0)
        # Backwards, so that the state before the last one is that after the first step.
        masked = np.ma.masked_invalid(direct)  # type: ignore[no-untyped-call]
        found = floyd_warshall(masked, return_predecessors=True)
        cost, hop = (np.ascontiguousarray(array.T) for array in found)
        if self.weights is None and self.boxings.queue is not None:
            at_once = np.ascontiguousarray(direct.T)
            takes = np.isfinite(at_once) & (at_once <= AT_ONCE * cost)
            hop = np.where(takes, np.arange(count, dtype=hop.dtype), hop)
            cost = np.where(np.isfinite(cost), _along(hop, at_once), np.inf)
        if self.weights is None:
            return RedistributionTable(shape, one.states, cost, hop, strided)
        parts = {}
        for resource, seconds in split.items():
            single = np.zeros((count, count))
            single[steps.before, steps.after] = seconds
            parts[resource] = _along(hop, single)
        return RedistributionTable(shape, one.states, cost, hop, strided, parts)

    def _between_all(self, key: _Key) -> _Boxings:
        """Return all boxings of a tensor with their seconds, however these are weighted."""
        if key not in self._boxings:
            shape, item_bytes, own, strided = key
            how = {"own": own, "any_order": self.engine.limits.any_order}
            states = tuple(all_states(shape, self.mesh.cuts, **how))
            if strided:
                states += tuple(strided_states(shape, self.mesh.cuts, strided, **how))
            steps = steps_between(states, len(shape), self.mesh.cuts, self.streams.boxes)
            elements = [math.prod(local_shape(shape, s, self.mesh.cuts) or ()) for s in states]
            looks = [(primitive, axes, elements[n]) for primitive, axes, n in steps.looks]
            known = {look: Boxing(*look) for look in dict.fromkeys(looks)}
            price = {
                look: (step, self.boxings.step_s(step, item_bytes)) for look, step in known.items()
            }
            priced = [price[look] for look in looks]
            seconds = np.array([s for _, s in priced], dtype=np.float64)[steps.look]
            self._boxings[key] = _Boxings(states, steps, seconds, priced)
        return self._boxings[key]

    def _weighted(self, seconds: Floats, parts: Mapping[str, Floats]) -> Floats:
        """Return what boxings of so many seconds, on each resource, count."""
        if self.weights is None:
            return seconds
        with np.errstate(invalid="ignore"):
            count = self.weights[SERIAL] * seconds
            for resource, part_s in parts.items():
                count += self.weights[resource] * part_s
        return np.where(np.isinf(seconds), np.inf, count)

    def _search(self, shape: tuple[int, ...], item_bytes: int, start: NdSbp, goal: NdSbp) -> Path:
        """Find a path with Dijkstra's algorithm over the states that the two need."""
        uneven = any(local_shape(shape, state, self.mesh.cuts) is None for state in (start, goal))
        extra = [
            dict.fromkeys(
                sbp.later(0) if sbp.is_split else sbp
                for sbp in pair
                if sbp.is_partial or sbp.stride is not None
            )
            for pair in zip(start, goal, strict=True)
        ]
        best: dict[NdSbp, float] = {start: 0.0}
        before: dict[NdSbp, NdSbp] = {}
        queue: list[tuple[float, int, NdSbp]] = [(0.0, 0, start)]
        done: set[NdSbp] = set()
        number = itertools.count(1)  # states of equal cost come out in the order they went in
        while queue and goal not in done:
            seconds, _, here = heapq.heappop(queue)
            if here in done:
                continue
            done.add(here)
            steps = self._plain_steps(shape, item_bytes, here, uneven)
            special = self._steps(shape, item_bytes, here, uneven, extra) if any(extra) else []
            for state, step_s in itertools.chain(steps, special):
                total = seconds + step_s
                if total < best.get(state, math.inf):
                    best[state], before[state] = total, here
                    heapq.heappush(queue, (total, next(number), state))
        if goal not in done:
            raise AutoDDLError(
                f"redistribution of {start} to {goal} of shape {shape} on mesh {self.mesh}: no way; "
                "sums, maxima and minima do not turn into each other"
            )
        path = [goal]
        while path[-1] != start:
            path.append(before[path[-1]])
        return tuple(reversed(path[:-1]))

    def _plain_steps(
        self, shape: tuple[int, ...], item_bytes: int, state: NdSbp, uneven: bool
    ) -> list[tuple[NdSbp, float]]:
        """Return what one boxing makes B or a plain split, with its seconds; remembered."""
        key = (shape, item_bytes, state, uneven)
        if key not in self._known_steps:
            entries = [axis_states(len(shape), partial=False)] * self.mesh.ndim
            self._known_steps[key] = self._steps(shape, item_bytes, state, uneven, entries)
        return self._known_steps[key]

    def _steps(
        self, shape: tuple[int, ...], item_bytes: int, state: NdSbp, uneven: bool,
        entries: Sequence[Collection[Sbp]],
    ) -> list[tuple[NdSbp, float]]:  # fmt: skip
        found = []
        for after in neighbours(state, entries):
            step = boxing(state, after, shape, self.mesh.cuts, uneven=uneven)
            if step is not None and does_run(
                self.streams.boxes, state, after, step.primitive, self.mesh.cuts
            ):
                found.append((after, self._price(step, item_bytes)))
        return found


def _along(hop: npt.NDArray[np.int32], direct: Floats) -> Floats:
    """Return the sums of what single steps take on the paths that `hop` gives; 0 where there is none."""
    goal = np.arange(len(hop))[None]
    here, total = goal.T.repeat(len(hop), axis=1), np.zeros(hop.shape)
    while (moves := (here != goal) & (hop[here, goal] >= 0)).any():
        after = np.where(moves, hop[here, goal], here)
        total += np.where(moves, direct[here, after], 0.0)
        here = after
    return total
