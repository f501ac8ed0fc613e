"""Cut an assignment into stages: the fastest cut that fits into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.perfmodel.pipeline.stage_partition import UnitChain, cut, strict_in_flight
from autoddl.planner.costs.assigned import Assigned
from autoddl.planner.costs.stage_links import Links
from autoddl.planner.costs.staged_assignment import Memories, Staged
from autoddl.planner.costs.unit_costs import UnitCosts, crossing_s
from autoddl.sbp.program import Program
from autoddl.sbp.program.blocks import layer_path
from autoddl.sbp.program.forward_positions import positions
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment

ROUNDS = 4  # cuts until the whole memory fits


def cut_into_stages(
    problem: CostNetwork, assignment: Assignment, stages: int, micro_batches: int, links: Links,
    limit: int | None = None,
) -> Staged:  # fmt: skip
    """Return the fastest cut of an assignment; where none fits into memory the one that needs least.

    `problem` is that of one micro-batch. Where a stage does not fit it makes its forward results again
    for the backward pass; so do all stages, if that is faster then.
    """
    cuts = _Cuts(Assigned(problem, assignment), stages, micro_batches, links, limit)
    tried = list(cuts.tried(again=False))
    if limit is not None and tried[0].memory_bytes > limit:
        tried += cuts.tried(again=True)
    fitting = [t for t in tried if limit is None or t.memory_bytes <= limit]
    if fitting:
        return min(fitting, key=lambda t: t.timeline.step_s)
    return min(tried, key=lambda t: t.memory_bytes)


class _Cuts:
    """The cuts of one assignment, for less and less of the memory that can be summed up."""

    def __init__(
        self, assigned: Assigned, stages: int, micro_batches: int, links: Links, limit: int | None
    ) -> None:
        self.assigned, self.links, self.limit = assigned, links, limit
        self.stages, self.micro_batches = stages, micro_batches
        self.found = positions(assigned.problem.program)
        self.memories: Memories = {}
        self.costs = UnitCosts(self.staged(()), self.found)
        self.preferred = _layer_begins(assigned.problem.program)

    def staged(self, bounds: Sequence[int], recomputed: Sequence[int] = ()) -> Staged:
        return Staged.equal(
            self.assigned, self.found, bounds, self.micro_batches, self.links,
            recomputed=recomputed, memories=self.memories,
        )  # fmt: skip

    def tried(self, *, again: bool) -> Iterator[Staged]:
        """Yield cuts until one fits; with `again` stages make their forward results again.

        All but the last do, since others' micro-batches come between its passes only there.
        """
        chain = self._chain(again=again)
        recomputed = range(self.stages - 1) if again else ()
        allowed = self.limit
        for _ in range(ROUNDS):
            found = self.staged(self._bounds(chain, allowed), recomputed)
            yield found
            if self.limit is None or found.memory_bytes <= self.limit:
                return
            flying = found.in_flight
            over = [s for s, m in enumerate(found.memory) if m.total > self.limit and flying[s] > 1]
            if over and not again:
                yield self.staged(found.bounds, over)
            allowed = int((allowed or 0) * self.limit / found.memory_bytes)

    def _bounds(self, chain: UnitChain, limit: int | None) -> tuple[int, ...]:
        """Return the positions before which the stages but the first begin."""
        stages, count = self.stages, self.micro_batches
        try:
            chosen = cut(chain, stages, count, limit_bytes=limit, preferred=self.preferred)
        except InfeasibleError:  # then the cut whose stages need about the same memory
            mean = sum(strict_in_flight(stages, count)) / stages
            pairs = zip(chain.held_bytes, chain.active_bytes, strict=True)
            weighed = tuple(float(held + mean * active) for held, active in pairs)
            chosen = cut(replace(chain, seconds=weighed, waiting_s=()), stages, count)
        return chosen.bounds[1:-1]

    def _chain(self, *, again: bool) -> UnitChain:
        """Return a unit for each position; see UnitCosts.units."""
        units = self.costs.units(again=again)
        size = self.assigned.problem.mesh.size
        ends = tuple(range(size)), tuple(range(size, 2 * size))
        crossing = np.zeros(self.found.count - 1)
        if self.stages > 1:
            crossing = crossing_s(self.costs.spans, self.costs, self.costs, self.links, ends)
        columns = {name: tuple(column.tolist()) for name, column in units._asdict().items()}
        return UnitChain(**columns, transfer_s=tuple(crossing.tolist()))


def _layer_begins(program: Program) -> set[int]:
    """Return the positions at which another layer, or module outside of stacks, begins."""
    paths = [layer_path(op.module) for op in program.ops if op.phase == "forward"]
    return {place for place, (a, b) in enumerate(pairwise(paths), 1) if a != b}
