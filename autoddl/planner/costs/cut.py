"""Cut an assignment into stages: the fastest cut that fits into memory, and the plan of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from autoddl.errors import InfeasibleError
from autoddl.perfmodel.pipeline.pipeline_timeline import closed_form_s
from autoddl.perfmodel.pipeline.stage_partition import UnitChain, cut, strict_in_flight
from autoddl.planner.costs.assigned import Assigned
from autoddl.planner.costs.stage_links import Links
from autoddl.planner.costs.staged_assignment import Memories, Staged
from autoddl.sbp.program import Program
from autoddl.sbp.program.blocks import layer_path
from autoddl.sbp.program.forward_positions import Positions, positions
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment

PLACES = 256  # about so many places of a program are candidates for cuts
ROUNDS = 4  # cuts until the whole memory fits
WORTH = 1e-3  # relative; cuts at other places than the borders of modules have to save so much

Floats = npt.NDArray[np.float64]


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
    if limit is not None and tried[0].needed_bytes > limit:
        tried += cuts.tried(again=True)
    fitting = [t for t in tried if limit is None or t.needed_bytes <= limit]
    if fitting:
        return min(fitting, key=lambda t: t.timeline.step_s)
    return min(tried, key=lambda t: t.needed_bytes)


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
        self.places = _places(_crossing(self.whole, self.found), self.found.count)
        begins = _layer_begins(assigned.problem.program)
        self.preferred = [n for n, p in enumerate(self.places[1:-1], 1) if p in begins]

    def staged(self, bounds: Sequence[int], recomputed: Sequence[int] = ()) -> Staged:
        return Staged(
            self.assigned, self.found, bounds, self.micro_batches, self.links,
            recomputed=recomputed, memories=self.memories,
        )  # fmt: skip

    def tried(self, *, again: bool) -> Iterator[Staged]:
        """Yield cuts until one fits; with `again` all stages make their forward results again."""
        stages = self.stages
        chain = _chain(self.whole, self.found, self.places, stages=stages, again=again)
        recomputed = range(stages - 1) if again else ()

        def at(units: Sequence[int]) -> Staged:
            return self.staged([self.places[unit] for unit in units], recomputed)

        allowed = self.limit
        for _ in range(ROUNDS):
            units = self._bounds(chain, allowed)
            found = at(self._settled(chain, units, again=again))
            yield found
            if self.limit is None or found.needed_bytes <= self.limit:
                return
            found = at(units)
            yield found
            if found.needed_bytes <= self.limit:
                return
            flying = found.in_flight
            over = [s for s, m in enumerate(found.memory) if m.total > self.limit and flying[s] > 1]
            if over and not again:
                yield self.staged(found.bounds, over)
            allowed = int((allowed or 0) * self.limit / found.needed_bytes)

    def _bounds(self, chain: UnitChain, limit: int | None) -> tuple[int, ...]:
        """Return the units before which the stages but the first begin."""
        stages, count = self.stages, self.micro_batches
        try:
            chosen = cut(chain, stages, count, limit_bytes=limit, preferred=self.preferred)
        except InfeasibleError:  # then the cut whose stages need about the same memory
            mean = sum(strict_in_flight(stages, count)) / stages
            pairs = zip(chain.held_bytes, chain.active_bytes, strict=True)
            weighed = tuple(float(held + mean * active) for held, active in pairs)
            chosen = cut(replace(chain, seconds=weighed), stages, count)
        return chosen.bounds[1:-1]

    def _settled(self, chain: UnitChain, units: tuple[int, ...], *, again: bool) -> tuple[int, ...]:
        """Move one cut after the other as long as that makes the step shorter.

        In the chain all units copy forward results on average, while in truth the last stage does not;
        with `again` none does.
        """
        copies = _copies(self.whole, self.found, self.places) * (not again)
        each = np.array(chain.seconds) - _copied(self.whole, self.stages) * copies
        sums = [np.concatenate([[0.0], np.cumsum(v)]) for v in (each, copies, chain.once_s)]

        def step_s(units: tuple[int, ...]) -> float:
            ends = np.array((0, *units, len(each)))
            seconds, copied, once = (np.diff(values[ends]) for values in sums)
            copied[-1] = 0.0
            sent_s = [chain.transfer_s[unit - 1] for unit in units]
            return closed_form_s(
                (seconds + copied).tolist(),
                self.micro_batches,
                transfer_s=sent_s,
                once_s=once.tolist(),
            )

        best_s, before = step_s(units), None
        while units != before:
            before = units
            for i in range(len(units)):
                low, high = (0, *units, len(each))[i], (*units, len(each))[i + 1]
                for unit in range(low + 1, high):
                    moved = (*units[:i], unit, *units[i + 1 :])
                    if (moved_s := step_s(moved)) < best_s * (1 - WORTH):
                        best_s, units = moved_s, moved
        return units


def _copied(whole: Staged, stages: int) -> float:
    """Return the share of units that copy forward results into buffers: all but the last stage's."""
    return 1 - 1 / stages if whole.micro_batches > 1 else 0.0


def _copies(whole: Staged, found: Positions, places: Sequence[int]) -> Floats:
    """Return by unit the seconds of copying forward results into buffers."""
    seconds = np.zeros(found.count)
    for name, _, price_s in whole.copies():
        place = (
            found.held[name] if name in found.held else found.op[whole.program.producer[name].name]
        )
        seconds[place] += price_s
    return np.add.reduceat(seconds, places[:-1])


def _chain(
    whole: Staged, found: Positions, places: Sequence[int], *, stages: int, again: bool
) -> UnitChain:
    """Return the units between places; with `again` their forward passes are run twice.

    All stages but the last copy forward results into buffers: each of them costs that on average.
    """
    program, count = whole.program, found.count
    times = {"forward": 2 if again else 1}
    seconds, once = np.zeros(count), np.zeros(count)
    for (_, phase, price), op in zip(whole.prices["compute"], program.ops, strict=True):
        place = found.op[op.name]
        (once if phase == "once" else seconds)[place] += price.seconds * times.get(phase, 1)
    for item, phase, price_s in whole.boxings():
        place = min((found.op[op] for op, _ in item.readers if op in found.op), default=count - 1)
        (once if phase == "once" else seconds)[place] += price_s * times.get(phase, 1)
    for name, price_s in whole.sums():
        seconds[found.op[program.producer[name].name]] += price_s
    held, active = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    added = 2 if whole.micro_batches > 1 else 1  # gradients of a micro-batch, and of all
    for name, size, kind in whole.sizes():
        place = found.held[name] if name in found.held else found.op[program.producer[name].name]
        kept = active if kind == "activation" and not again else held
        kept[place] += size * (added if kind == "gradient" else 1)
    sums = [np.add.reduceat(values, places[:-1]) for values in (seconds, once, held, active)]
    if not again:
        sums[0] += _copied(whole, stages) * _copies(whole, found, places)
    crossing = _crossing(whole, found)
    return UnitChain(
        tuple(sums[0].tolist()), tuple(sums[1].tolist()),
        tuple(float(crossing[p - 1]) for p in places[1:-1]),
        tuple(int(v) for v in sums[2]), tuple(int(v) for v in sums[3]),
    )  # fmt: skip


def _crossing(whole: Staged, found: Positions) -> Floats:
    """Return for every place between positions the seconds of what crosses it, both ways."""
    change = np.zeros(found.count + 1)
    for tensor, state in whole.made.items():
        producer = whole.program.producer.get(tensor)
        here = found.held[tensor] if producer is None else found.op[producer.name]
        readers = [
            found.op[op.name]
            for op, _ in whole.program.consumers.get(tensor, ())
            if op.phase != "optimizer"
        ]
        low, high = min([here, *readers]), max([here, *readers])
        if low < high:
            sent_s = whole.links.seconds(0, 1, whole.local(tensor, state))
            change[low] += sent_s
            change[high] -= sent_s
    return np.cumsum(change)[: found.count - 1]


def _places(crossing: Floats, count: int) -> list[int]:
    """Return the cheapest places of each stretch of the program."""
    stretch = max(1, count // PLACES)
    found = {0, count}
    for begin in range(0, len(crossing), stretch):
        found.add(begin + int(crossing[begin : begin + stretch].argmin()) + 1)
    return sorted(found)


def _layer_begins(program: Program) -> set[int]:
    """Return the positions at which another layer, or module outside of stacks, begins."""
    paths = [layer_path(op.module) for op in program.ops if op.phase == "forward"]
    return {place for place, (a, b) in enumerate(pairwise(paths), 1) if a != b}
