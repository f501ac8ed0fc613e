"""Cut an assignment into stages: the fastest cut that fits into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from autoddl.errors import InfeasibleError
from autoddl.perfmodel.pipeline.stage_partition import UnitChain, cut, strict_in_flight
from autoddl.planner.costs.assigned import Assigned
from autoddl.planner.costs.stage_links import Links
from autoddl.planner.costs.staged_assignment import ONCE, Memories, Spent, Staged
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
        self.whole = self.staged(())
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
        """Return a unit for each position; with `again` their forward passes are run twice.

        Else forward results are copied into buffers, but where no other micro-batch comes between.
        """
        spent, waiting = self.whole.spent, list[Spent]()
        if again:
            waiting = [item for item in spent if item.phase == "forward"]
        elif self.micro_batches > 1:
            waiting = list(self.whole.copies())
        held, active = (np.zeros(self.found.count, dtype=np.int64) for _ in range(2))
        for maker, size, kind in self.whole.sizes():
            kept = active if kind == "activation" and not again else held
            twice = kind == "gradient" and self.micro_batches > 1  # of a micro-batch, and of all
            kept[self._place(maker)] += size * (1 + twice)
        return UnitChain(
            self._by_place(item for item in spent if item.phase != ONCE),
            self._by_place(item for item in spent if item.phase == ONCE),
            self._crossing_s(),
            tuple(held.tolist()),
            tuple(active.tolist()),
            waiting_s=self._by_place(waiting),
        )

    def _by_place(self, spent: Iterable[Spent]) -> tuple[float, ...]:
        seconds = [0.0] * self.found.count
        for item in spent:
            seconds[min(map(self._place, item.of))] += item.seconds
        return tuple(seconds)

    def _place(self, name: str) -> int:
        """Return the position of an op, variable or input; the last one for what the graph returns."""
        held = self.found.held.get(name, self.found.count - 1)
        return self.found.op.get(name, held)

    def _crossing_s(self) -> tuple[float, ...]:
        """Return for every place between positions the seconds of what crosses it, both ways."""
        whole, change = self.whole, np.zeros(self.found.count + 1)
        size = self.assigned.problem.mesh.size
        ends = tuple(range(size)), tuple(range(size, 2 * size))
        for tensor, state in whole.made.items():
            readers = whole.program.consumers.get(tensor, ())
            names = [op.name for op, _ in readers if op.phase != "optimizer"]
            places = [self._place(name) for name in (whole.maker(tensor), *names)]
            if min(places) < max(places):
                sent_s = whole.links.seconds(*ends, whole.local(tensor, state, 0))
                change[min(places)] += sent_s
                change[max(places)] -= sent_s
        return tuple(np.maximum(np.cumsum(change), 0.0)[: self.found.count - 1].tolist())


def _layer_begins(program: Program) -> set[int]:
    """Return the positions at which another layer, or module outside of stacks, begins."""
    paths = [layer_path(op.module) for op in program.ops if op.phase == "forward"]
    return {place for place, (a, b) in enumerate(pairwise(paths), 1) if a != b}
