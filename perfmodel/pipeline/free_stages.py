"""Stages of a graph that is no chain: which node is in which, by an integer linear program.

Binaries y[i, s] tell that node i is in stage s or an earlier one, so x[i, s] = y[i, s] − y[i, s − 1] that
it is in s. z[k, s] is 1 where tensor k is sent to stage s:

    minimise  (m − 1) · T + Σ t + Σ e·z + O
    y[i, s] ≤ y[i, s + 1];   y[a, s] ≥ y[b, s]          for a that comes before b
    z[k, s] ≥ x[r, s] − x[a, s]                         for each reader r of tensor k, which a makes
    Σ_i c_i · x[i, s] ≤ T;   Σ_i o_i · x[i, s] ≤ O;   Σ_i (held_i + flying_s · active_i) · x[i, s] ≤ limit

The fastest cut of a chain is the start: what is faster has max t below some T, so that a node can't be in
stages where it and all that comes before or behind it would take longer (stage_graph.stage_ranges).

Four nodes of 1 s in a row, 2 stages: where none may take more than 2.2 s, the second node is in stage 0.

Source: Rhino §5.1, with a variable per tensor and stage for its F per edge, which counts a tensor twice
that two nodes of a stage read; its objective is `fewest_bytes`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.perfmodel.pipeline.placed_cut import NO_LIMIT, Floats
from autoddl.perfmodel.pipeline.schedules import strict_in_flight
from autoddl.perfmodel.pipeline.stage_graph import StageGraph, contiguous, stage_ranges

CLOSE = 1e-9  # relative: caps are so much higher, for rounding
INFEASIBLE = 2  # scipy.optimize.OptimizeResult.status
LONGEST, MOST_ONCE = 0, 1  # the last columns: T and O


class HighsLimits(NamedTuple):
    """When HiGHS ends: after so many seconds or branches, or with a gap, relative to what was found."""

    seconds: float = math.inf
    branches: int | None = None
    gap: float = 0.0


EXACT = HighsLimits()


@dataclass(frozen=True)
class FreeStages:
    """The stage of each node; `value` is the objective, seconds or bytes, and `gap` what may be missing.

    The gap is relative to the value. `contiguous` is the objective of the best cut of a chain, None
    where none fits; HiGHS has looked at so many `branches`.
    """

    stage_of: tuple[int, ...]
    value: float
    gap: float
    contiguous: float | None
    branches: int


def fastest(
    graph: StageGraph, micro_batches: int, *, limit: int = NO_LIMIT, effort: HighsLimits = EXACT,
    tightened: bool = True,
) -> FreeStages | None:  # fmt: skip
    """Return the stages of the least step, within a limit of bytes; None where none fit.

    They are the best that was found, which may be the start, and HiGHS lets them exceed the limit by a
    millionth. Untightened, nodes may be in any stage and HiGHS is told nothing of the start.
    """
    start = contiguous(graph, micro_batches, limit)
    start_s = math.inf if start is None else graph.step_s(start, micro_batches)
    once_s = max(graph.once_s.max(initial=0.0), graph.once_s.sum() / graph.stages)
    most_s = math.inf
    if micro_batches > 1 and tightened:
        most_s = (start_s - graph.seconds.sum() - once_s) / (micro_batches - 1) * (1 + CLOSE)
    model = _Model(graph, most_s)
    model.within(micro_batches, limit)
    weights = micro_batches - 1.0, 1.0
    answer = model.solve(graph.sent_s, graph.waiting_s, weights, effort)
    found = [each for each in (start, answer.stage_of) if each is not None]
    if not found:
        return None
    best = min(found, key=lambda stages: graph.step_s(stages, micro_batches))
    best_s, bound_s = graph.step_s(best, micro_batches), answer.bound + float(graph.seconds.sum())
    return FreeStages(
        tuple(best), best_s, _gap(best_s, bound_s), None if start is None else start_s,
        answer.branches,
    )  # fmt: skip


def fewest_bytes(
    graph: StageGraph, tolerance: float, *, effort: HighsLimits = EXACT, tightened: bool = True
) -> FreeStages:
    """Return the stages that send the fewest bytes, none of which takes over (1 + tolerance) · mean.

    Nothing waits, and memory does not count.

    Raises:
        AutoDDLError: the tolerance is not above 0.
        InfeasibleError: no stages are as balanced as that, or HiGHS has found none yet.
    """
    if not tolerance > 0:
        raise AutoDDLError(f"tolerance: got {tolerance}; allowed are numbers above 0, such as 0.1")
    most_s = (1 + tolerance) * float(graph.seconds.sum()) / graph.stages * (1 + CLOSE)
    weights = np.repeat(graph.sent_bytes.astype(float)[:, None], graph.stages, axis=1)
    model = _Model(graph, most_s, ranges=tightened, waits=False)
    answer = model.solve(weights, 0 * graph.waiting_s, (0.0, 0.0), effort)
    told = f"tolerance: got {tolerance}, and no {graph.stages} stages of {len(graph.seconds)} nodes"
    if answer.stage_of is not None:
        sent = float(weights[graph.arrivals(answer.stage_of)].sum())
        gap = _gap(sent, answer.bound)
        return FreeStages(tuple(answer.stage_of), sent, gap, None, answer.branches)
    if answer.bound < math.inf:
        raise InfeasibleError(f"{told} as balanced were found in time; give more time")
    raise InfeasibleError(f"{told} are as balanced; the least is {least_tolerance(graph):.4g}")


def least_tolerance(graph: StageGraph) -> float:
    """Return the least tolerance at which there are balanced stages."""
    model = _Model(graph, math.inf, waits=False)
    found = model.solve(0 * graph.sent_s, 0 * graph.waiting_s, (1.0, 0.0), EXACT).stage_of
    assert found is not None, "without a limit there are stages"
    return graph.load(found) * graph.stages / float(graph.seconds.sum()) - 1


def _gap(value: float, bound: float) -> float:
    return min(max(0.0, 1 - bound / value), 1.0) if value > 0 else 0.0


class _Answer(NamedTuple):
    """The stage of each node, None without any; HiGHS's bound, infinite if there is none; its work."""

    stage_of: list[int] | None
    bound: float
    branches: int


class _Model:
    """The rows of the program over columns y (node by node), z (tensor by tensor), T and O."""

    def __init__(
        self, graph: StageGraph, most_s: float, *, ranges: bool = True, waits: bool = True
    ) -> None:
        """Let no stage take more than `most_s`; without `ranges` by its row alone."""
        from scipy import sparse  # takes time to load

        self.graph, self.sparse = graph, sparse
        nodes, stages, cuts = len(graph.seconds), graph.stages, graph.stages - 1
        self.unit_s = float(graph.seconds.sum()) / stages or 1.0  # tolerances of HiGHS are absolute
        self.width = nodes * cuts + graph.sent_s.size + 2
        self.rows: list[tuple[Any, Any, Any]] = []
        low, high = stage_ranges(graph, most_s if ranges else math.inf)
        at = np.arange(cuts)
        self.lower, self.upper = np.zeros(self.width), np.ones(self.width)
        self.lower[: nodes * cuts] = (at >= high[:, None]).reshape(-1)
        self.upper[: nodes * cuts] = (at >= low[:, None]).reshape(-1)
        self.upper[-2:] = most_s / self.unit_s, math.inf
        self.within_stage = np.eye(stages, cuts) - np.eye(stages, cuts, -1)
        every, later = sparse.identity(nodes), np.diff(np.eye(cuts), axis=0)
        self._add(0.0, math.inf, y=self._y(every, later))
        self._add(0.0, math.inf, y=self._y(self._ends(*graph.edges.T), np.eye(cuts)))
        tensor, maker, reader, _ = graph.reads.T
        arrives = self._y(self._ends(reader, maker), self.within_stage)
        sent = sparse.kron(self._of(tensor, len(graph.sent)), sparse.identity(stages))
        self._add(-math.inf, 0.0, y=arrives, z=-sent)
        units = (np.arange(nodes) < graph.units).astype(float)
        self._add(1.0 - self._last(units), math.inf, y=self._y(units[None], self.within_stage))
        inner = self.within_stage * (np.arange(stages) < stages - 1)[:, None]
        waiting = self._y(waits * graph.waiting_s[None] / self.unit_s, inner)
        self._sum(graph.seconds, LONGEST, waiting)

    def within(self, micro_batches: int, limit: int) -> None:
        """Add what a stage does once per step, and the memory limit."""
        graph = self.graph
        self._sum(graph.once_s, MOST_ONCE)
        if limit >= NO_LIMIT:
            return
        flying = np.array(strict_in_flight(graph.stages, micro_batches), dtype=float)
        held, active = (each / max(limit, 1) for each in (graph.held, graph.active))
        kept = flying[:, None] * self.within_stage
        room = limit / max(limit, 1) - self._last(held) - flying * self._last(active)
        rows = self._y(held[None], self.within_stage) + self._y(active[None], kept)
        self._add(-math.inf, room, y=rows)

    def solve(
        self, sent: Floats, waiting: Floats, weights: tuple[float, float], effort: HighsLimits
    ) -> _Answer:  # fmt: skip
        """Return the stages of the least cost.

        Sent tensors cost `sent`, nodes `waiting` outside the last stage, T and O these weights.
        """
        from scipy import optimize, sparse

        nodes, cuts = len(self.graph.seconds), self.graph.stages - 1
        y = np.zeros((nodes, cuts))
        y[:, -1:] = np.array(waiting)[:, None]
        cost = np.concatenate([y.reshape(-1), sent.reshape(-1), np.array(weights) * self.unit_s])
        scale = 1.0 / max(float(np.abs(cost).max(initial=0.0)), 1e-300)
        matrix = sparse.vstack([rows for rows, _, _ in self.rows], format="csr")
        low, high = (np.concatenate([row[n] for row in self.rows]) for n in (1, 2))
        options: dict[str, Any] = {"mip_rel_gap": effort.gap}
        if math.isfinite(effort.seconds):
            options["time_limit"] = max(effort.seconds, 0.0)
        if effort.branches is not None:
            options["node_limit"] = effort.branches
        answer = optimize.milp(
            cost * scale,
            integrality=np.arange(self.width) < nodes * cuts,
            bounds=optimize.Bounds(self.lower, self.upper),
            constraints=optimize.LinearConstraint(matrix, low, high),
            options=options,
        )
        if answer.status == INFEASIBLE:
            return _Answer(None, math.inf, 0)
        bound = -math.inf if answer.mip_dual_bound is None else answer.mip_dual_bound / scale
        branches, stage_of = int(answer.mip_node_count or 0), None
        if answer.x is not None:
            upto = np.round(answer.x[: nodes * cuts]).reshape(nodes, cuts)
            stage_of = (cuts - upto.sum(axis=1)).astype(int).tolist()
        return _Answer(stage_of, float(bound), branches)

    def _y(self, nodes: Any, stages: Any) -> Any:
        """Return the rows over y that are the product of a matrix over nodes and one over cuts."""
        return self.sparse.kron(self.sparse.csr_matrix(nodes), stages, format="csr")

    def _of(self, columns: Any, width: int) -> Any:
        """Return a matrix that picks a column in each row."""
        rows = np.arange(len(columns))
        return self.sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), (len(rows), width))

    def _ends(self, plus: Any, minus: Any) -> Any:
        count = len(self.graph.seconds)
        return self._of(plus, count) - self._of(minus, count)

    def _last(self, values: Any) -> Floats:
        """Return by stage the constant of the sum of its nodes' values: all of them in the last."""
        return np.append(np.zeros(self.graph.stages - 1), float(np.sum(values)))

    def _sum(self, seconds: Floats, upto: int, more: Any = 0) -> None:
        """Let the column `upto` be at least the sum of seconds in each stage, and more."""
        mine = seconds / self.unit_s
        ends = np.zeros((self.graph.stages, 2))
        ends[:, upto] = -1.0
        rows = self._y(mine[None], self.within_stage) + more
        self._add(-math.inf, -self._last(mine), y=rows, ends=self.sparse.csr_matrix(ends))

    def _add(self, low: Any, high: Any, *, y: Any, z: Any = None, ends: Any = None) -> None:
        """Add rows over y, z, and T with O."""
        count, sizes = y.shape[0], (self.graph.sent_s.size, 2)
        more = (
            self.sparse.csr_matrix((count, size)) if block is None else block
            for block, size in zip((z, ends), sizes, strict=True)
        )
        limits = (np.broadcast_to(end, (count,)) for end in (low, high))
        self.rows.append((self.sparse.hstack([y, *more], format="csr"), *limits))
