"""Cut an assignment into stages: the fastest cut that fits into memory, and the plan of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.errors import InfeasibleError
from autoddl.make_plan import Assigned, make_plan
from autoddl.perfmodel.pipeline import closed_form_s
from autoddl.perfmodel.timeline import MODEL_ERROR
from autoddl.plan import Estimate, Plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.positions import Positions, positions
from autoddl.sbp.program import Program
from autoddl.search.problem import Problem
from autoddl.search.result import Assignment, SearchResult
from autoddl.search.stages import Chain, cut, strict_in_flight
from autoddl.staging import Links, Memories, Staged

PLACES = 256  # about so many places of a program are candidates for cuts
ROUNDS = 4  # cuts until the whole memory fits
WORTH = 1e-3  # relative; cuts at other places than the borders of modules have to save so much

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """A number of stages and micro-batches, and the mesh of each stage."""

    stages: int
    micro_batches: int
    mesh: Mesh


def cut_into_stages(
    problem: Problem, assignment: Assignment, candidate: Candidate, links: Links,
    limit: int | None = None,
) -> Staged:  # fmt: skip
    """Return the fastest cut of an assignment; where none fits into memory the one that needs least.

    `problem` is that of one micro-batch. Where a stage does not fit it makes its forward results again
    for the backward pass; so do all stages, if that is faster then.
    """
    cuts = _Cuts(problem, assignment, candidate, links, limit)
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
        self, problem: Problem, assignment: Assignment, candidate: Candidate, links: Links,
        limit: int | None,
    ) -> None:  # fmt: skip
        self.assigned, self.links = Assigned(problem, assignment), links
        self.candidate, self.limit = candidate, limit
        self.found = positions(problem.program)
        self.memories: Memories = {}
        self.whole = self.staged(())
        self.places = _places(_crossing(self.whole, self.found), self.found.count)
        blocks = _Blocks(problem.program)
        self.preferred = [n for n, p in enumerate(self.places[1:-1], 1) if blocks.begins(p)]

    def staged(self, bounds: Sequence[int], recomputed: Sequence[int] = ()) -> Staged:
        return Staged(
            self.assigned, self.found, bounds, self.candidate.micro_batches, self.links,
            recomputed=recomputed, memories=self.memories,
        )  # fmt: skip

    def tried(self, *, again: bool) -> Iterator[Staged]:
        """Yield cuts until one fits; with `again` all stages make their forward results again."""
        stages = self.candidate.stages
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

    def _bounds(self, chain: Chain, limit: int | None) -> tuple[int, ...]:
        """Return the units before which the stages but the first begin."""
        stages, count = self.candidate.stages, self.candidate.micro_batches
        try:
            chosen = cut(chain, stages, count, limit_bytes=limit, preferred=self.preferred)
        except InfeasibleError:  # then the cut whose stages need about the same memory
            mean = sum(strict_in_flight(stages, count)) / stages
            pairs = zip(chain.held_bytes, chain.active_bytes, strict=True)
            weighed = tuple(float(held + mean * active) for held, active in pairs)
            chosen = cut(replace(chain, seconds=weighed), stages, count)
        return chosen.bounds[1:-1]

    def _settled(self, chain: Chain, units: tuple[int, ...], *, again: bool) -> tuple[int, ...]:
        """Move one cut after the other as long as that makes the step shorter.

        In the chain all units copy forward results on average, while in truth the last stage does not;
        with `again` none does.
        """
        copies = _copies(self.whole, self.found, self.places) * (not again)
        each = np.array(chain.seconds) - _copied(self.whole, self.candidate.stages) * copies
        sums = [np.concatenate([[0.0], np.cumsum(v)]) for v in (each, copies, chain.once_s)]

        def step_s(units: tuple[int, ...]) -> float:
            ends = np.array((0, *units, len(each)))
            seconds, copied, once = (np.diff(values[ends]) for values in sums)
            copied[-1] = 0.0
            sent_s = [chain.transfer_s[unit - 1] for unit in units]
            return closed_form_s(
                (seconds + copied).tolist(),
                self.candidate.micro_batches,
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
) -> Chain:
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
    for name, size, forward in whole.sizes():
        place = found.held[name] if name in found.held else found.op[program.producer[name].name]
        (active if forward and not again else held)[place] += size
    sums = [np.add.reduceat(values, places[:-1]) for values in (seconds, once, held, active)]
    if not again:
        sums[0] += _copied(whole, stages) * _copies(whole, found, places)
    crossing = _crossing(whole, found)
    return Chain(
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


class _Blocks:
    """Where another module of the outermost list of modules begins, as "model.blocks.3"."""

    def __init__(self, program: Program) -> None:
        self.modules = [_block(op.module) for op in program.ops if op.phase == "forward"]

    def begins(self, place: int) -> bool:
        return self.modules[place - 1] != self.modules[place]


def _block(module: str) -> str:
    """Return a module path up to its first number."""
    parts = module.split(".")
    end = next((n for n, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: end + 1])


def staged_plan(staged: Staged, result: SearchResult, *, limit: int | None, seed: int) -> Plan:
    """Return the plan of a cut."""
    plan = make_plan(
        staged.assigned.problem, result, memory_limit_bytes=limit,
        search=_search(staged, result, seed), assigned=staged.assigned,
    )  # fmt: skip
    return replace(
        plan,
        fingerprint=staged.program.structure,
        redistributions=staged.redistributions,
        pipeline=staged.pipeline,
        estimate=estimate("plan", staged),
    )


def estimate(name: str, staged: Staged) -> Estimate:
    """Return what a step takes on the busiest stage's devices, and what these wait."""
    step, count = staged.step, staged.micro_batches
    step_s = staged.timeline.step_s
    totals = []
    for work in step.stages:
        busy = {"compute": 0.0, "boxing": 0.0}
        for times, parts in ((count, work.forward + work.backward), (1, work.once)):
            for stream, seconds in parts:
                busy[stream] += times * seconds
        totals.append((sum(busy.values()), busy["compute"], busy["boxing"]))
    total, compute_s, communication_s = max(totals)
    relative = staged.assigned.prediction.cost
    share = relative.uncertainty_s / relative.step_s if relative.step_s else 0.0
    return Estimate(
        name, compute_s, communication_s, staged.needed_bytes,
        uncertainty_s=step_s * math.hypot(MODEL_ERROR, share),
        overlap_s=max(0.0, total - step_s),
        idle_s=max(0.0, step_s - total),
    )  # fmt: skip


def _search(staged: Staged, result: SearchResult, seed: int) -> dict[str, Any]:
    cost_s = staged.bounded_s
    return {
        "solver": result.solver,
        "objective": "time",
        "seed": seed,
        "seconds": 0.0,
        "lower_bound_s": result.lower_bound_s,
        "gap": max(0.0, 1 - result.lower_bound_s / cost_s) if cost_s > 0 else 0.0,
    }
