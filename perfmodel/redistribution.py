"""Redistribution: the cheapest path of boxings between any two states of a tensor.

Shortest paths between all plain states at once (Floyd–Warshall), and one by one for others (Dijkstra). If
(S0, B) → (B, B) takes 5 ms and (B, B) → (B, S0) 1 ms, and no boxing leads from (S0, B) to (B, S0) in less
than 6 ms, that is its path: two boxings, over (B, B).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import floyd_warshall

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.oneflow.compute_stream import is_converted
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Link
from autoddl.perfmodel.resources import SERIAL, ResourceParts
from autoddl.perfmodel.roofline import OpWork, op_s
from autoddl.perfmodel.topology import crossing
from autoddl.sbp.boxing import ALL_GATHER, LOCAL, PAD, Boxing, boxing, counts_result
from autoddl.sbp.canonical import canonical
from autoddl.sbp.layout import Path
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.shards import all_states, local_shape
from autoddl.sbp.state import NdSbp, Sbp, axis_states

Floats = npt.NDArray[np.float64]
_Step = tuple[int, int, int, str, tuple[int, ...]]
"""A boxing from one state to another, by number: which of both counts, its primitive and its axes."""


@dataclass(frozen=True, eq=False)
class RedistributionTable:
    """Costs and paths between all plain states of tensors of one shape.

    `cost[i, j]` is in seconds from `states[i]` to `states[j]`; `hop[i, j]` is the state after the
    first step. Where seconds are weighted, `parts` has those of each resource on the same paths.
    """

    shape: tuple[int, ...]
    states: tuple[NdSbp, ...]
    cost: Floats
    hop: npt.NDArray[np.int32]
    parts: Mapping[str, Floats] = field(default_factory=dict, repr=False)
    _paths: dict[tuple[NdSbp, NdSbp], Path] = field(default_factory=dict, repr=False)

    @cached_property
    def index(self) -> dict[NdSbp, int]:
        """Return the position of every state."""
        return {state: i for i, state in enumerate(self.states)}

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

    With `any_order` tables also have the states whose axes cut in another order than the mesh's. With
    `compute_stream` paths have no boxing that OneFlow would send through the host then. With `weights`
    of resources (Profile.parts), and of seconds on whichever (SERIAL), tables have the weighted seconds,
    and the paths that are cheapest under them.
    """

    def __init__(
        self, mesh: Mesh, profile: Profile, *, any_order: bool = False, compute_stream: bool = False,
        weights: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.mesh, self.weights = mesh, weights
        self.any_order, self.compute_stream = any_order, compute_stream
        self.profile = profile
        self._way = cache(partial(crossing, mesh, innermost=profile.levels[-1]))
        self._tables: dict[tuple[tuple[int, ...], int, bool], RedistributionTable] = {}
        self._other: dict[tuple[tuple[int, ...], int, NdSbp, NdSbp], Path] = {}
        self._known_steps: dict[
            tuple[tuple[int, ...], int, NdSbp, bool], list[tuple[NdSbp, float]]
        ] = {}

    def table(
        self, shape: tuple[int, ...], item_bytes: int, *, own: bool = False
    ) -> RedistributionTable:
        """Return the table of tensors with this logical shape and element size in bytes.

        With `own` it has the states of values that differ between devices, too; they stay among
        themselves, at infinite cost to any other.
        """
        key = (shape, item_bytes, own)
        if key not in self._tables:
            self._tables[key] = self._build(shape, item_bytes, own)
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
            start, goal = (canonical(state, shape, self.mesh.shape) for state in (src, dst))
            plain = start in table.index and goal in table.index
            self._other[key] = (
                table.path(start, goal) if plain else self._search(shape, item_bytes, start, goal)
            )
        return self._other[key]

    def step_s(self, step: Boxing, item_bytes: int) -> float:
        """Return the seconds of one boxing, its launch included; inf where the profile has no price.

        All groups of the mesh do it at once, so those that cross the same link share it. OneFlow's
        nn.Graph has no kernel that pads: S→P costs it about what a gather does.
        """
        size = step.elements * item_bytes
        if step.primitive == LOCAL:
            return op_s(self.profile, OpWork("boxing", "memory", "", 0.0, 2 * size))
        if self.link(step) is None:
            return math.inf
        seconds = self.profile.collective_s(_collective(step), self._way(step.axes), size)
        return self.profile.op_overhead_s + seconds

    def _price(self, step: Boxing, item_bytes: int) -> float:
        seconds, weights = self.step_s(step, item_bytes), self.weights
        if weights is None or math.isinf(seconds):
            return seconds
        parts = self._parts(step, item_bytes)
        return weights[SERIAL] * seconds + sum(weights[r] * s for r, s in parts)

    def _parts(self, step: Boxing, item_bytes: int) -> ResourceParts:
        level = self.mesh.axes[step.axes[0]].level if step.axes else None
        return self.profile.parts(level, self.step_s(step, item_bytes))

    def link(self, step: Boxing) -> Link | None:
        """Return the link that prices a boxing; None for a local one and where there is no price.

        Groups that span levels are priced only by links that were measured just so.
        """
        if step.primitive == LOCAL:
            return None
        collective, way = _collective(step), self._way(step.axes)
        if way.inner > 1 and not self.profile.measured(collective, way):
            return None
        return self.profile.link(collective, way)

    def _build(self, shape: tuple[int, ...], item_bytes: int, own: bool) -> RedistributionTable:
        states = tuple(all_states(shape, self.mesh.shape, own=own, any_order=self.any_order))
        count = len(states)
        direct = np.full((count, count), np.inf)
        np.fill_diagonal(direct, 0.0)
        elements = [math.prod(local_shape(shape, s, self.mesh.shape) or ()) for s in states]
        boxings = _on_compute_stream if self.compute_stream else _steps_between
        steps = boxings(states, len(shape), self.mesh.shape)
        looks = [(primitive, axes, elements[counted]) for *_, counted, primitive, axes in steps]
        prices = {look: self._price(Boxing(*look), item_bytes) for look in dict.fromkeys(looks)}
        before, after = [step[0] for step in steps], [step[1] for step in steps]
        direct[after, before] = [prices[look] for look in looks]
        # SciPy takes zeros for missing edges, masked or not, and unmasked all that is next to nothing,
        # which is what is free costs here.
        direct = np.maximum(direct, np.finfo(float).tiny)
        np.fill_diagonal(direct, 0.0)
        # Backwards, so that the state before the last one is that after the first step.
        masked = np.ma.masked_invalid(direct)  # type: ignore[no-untyped-call]
        found = floyd_warshall(masked, return_predecessors=True)
        cost, hop = (np.ascontiguousarray(array.T) for array in found)
        if self.weights is None:
            return RedistributionTable(shape, states, cost, hop)
        single: dict[str, Floats] = {}  # by resource, of boxings from one state to another
        taken = {look: self._parts(Boxing(*look), item_bytes) for look in prices}
        for source, goal, look in zip(before, after, looks, strict=True):
            for resource, seconds in taken[look]:
                single.setdefault(resource, np.zeros((count, count)))[source, goal] = seconds
        parts = {resource: _along(hop, direct) for resource, direct in single.items()}
        return RedistributionTable(shape, states, cost, hop, parts)

    def _search(self, shape: tuple[int, ...], item_bytes: int, start: NdSbp, goal: NdSbp) -> Path:
        """Find a path with Dijkstra's algorithm over the states that the two need."""
        uneven = any(local_shape(shape, state, self.mesh.shape) is None for state in (start, goal))
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
        for after in _neighbours(state, entries):
            step = boxing(state, after, shape, self.mesh.shape, uneven=uneven)
            if step is None or (
                self.compute_stream and not _goes(state, after, step.primitive, self.mesh.shape)
            ):
                continue
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


@lru_cache(maxsize=256)
def _steps_between(
    states: tuple[NdSbp, ...], dims: int, mesh: tuple[int, ...]
) -> tuple[_Step, ...]:
    """Return all boxings between some states; they are the same for all shapes that these cut evenly."""
    index = {state: i for i, state in enumerate(states)}
    found = []
    for src in states:
        for dst in _neighbours(src, [axis_states(dims)] * len(mesh)):
            step = _primitive(src, dst, mesh) if dst in index else None
            if step is not None:
                counted = dst if counts_result(step[0]) else src
                found.append((index[src], index[dst], index[counted], *step))
    return tuple(found)


@lru_cache(maxsize=256)
def _on_compute_stream(
    states: tuple[NdSbp, ...], dims: int, mesh: tuple[int, ...]
) -> tuple[_Step, ...]:
    """Return those of them that OneFlow does not send through the host on its compute stream."""
    steps = _steps_between(states, dims, mesh)
    return tuple([s for s in steps if _goes(states[s[0]], states[s[1]], s[3], mesh)])


def _goes(before: NdSbp, after: NdSbp, primitive: str, mesh: tuple[int, ...]) -> bool:
    return primitive == LOCAL or is_converted(before.executed, after.executed, mesh)


@lru_cache(maxsize=1 << 14)
def _primitive(src: NdSbp, dst: NdSbp, mesh: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    """Return the primitive and its axes that take a state to another of tensors that both cut evenly."""
    dims = 1 + max([sbp.dim for sbp in (*src, *dst)], default=-1)
    step = boxing(src, dst, (math.prod(mesh),) * dims, mesh)
    return None if step is None else (step.primitive, step.axes)


def _collective(step: Boxing) -> str:
    return ALL_GATHER if step.primitive == PAD else step.primitive


def _neighbours(state: NdSbp, entries: Sequence[Collection[Sbp]]) -> Iterator[NdSbp]:
    """Yield what one axis, or a run of neighbouring axes in one state, may turn into at once.

    A new cut comes after all others of its dim; in the mesh's order where that is the same.
    """
    for first in range(len(state)):
        for last in range(first, len(state)):
            if state[last] is not state[first]:
                break
            run = range(first, last + 1)
            for entry in entries[first]:
                new = entry if entry.kind != "S" else entry.later(_last_turn(state, run, entry.dim))
                if new is not state[first] and not _mixes(state, run, new):
                    yield NdSbp(new if i in run else s for i, s in enumerate(state))


def _last_turn(state: NdSbp, run: range, dim: int) -> int:
    """Return the first turn in which a cut along `run` comes after the other cuts of `dim`."""
    others = [(s.turn, i) for i, s in enumerate(state) if s.dim == dim and i not in run]
    turn, axis = max(others, default=(0, -1))
    return turn + (axis > run[0])


def _mixes(state: NdSbp, run: range, new: Sbp) -> bool:
    """Tell whether partial values of two reductions would meet."""
    return new.kind == "P" and any(
        s.kind == "P" and s is not new for i, s in enumerate(state) if i not in run
    )
