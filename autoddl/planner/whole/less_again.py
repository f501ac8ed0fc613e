"""Less that is computed again: just so much that the step fits into memory.

A plan whose layers are computed again is left with fewer copies of ops, in the states that it has. Of
each layer that result is kept first which spares most seconds for its bytes, then that which does so
besides, until nothing is made again; of equal ones that of the last layer, since memory is shortest where
the backward pass begins, and its results are read at once. How many are kept is bisected.

    h = x @ w in 3 ms, r = relu(h) in 1 ms, each of 8 B. If the backward pass reads r alone, keeping h
    spares 3 / 8 ms per byte, keeping r 4 / 8: r is kept first, and nothing is made again then. If it
    reads both, keeping r spares 1 / 8: h is kept first.

Source: greedy solution of a knapsack (Dantzig 1957); Chen et al. 2016 (Training deep nets with sublinear
memory cost).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from autoddl.planner.race import Solution
from autoddl.planner.request import Request
from autoddl.planner.whole.assigned import Assigned
from autoddl.planner.whole.one_stage import OneStage
from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.blocks import layer_path
from autoddl.sbp.program.ops_and_tensors import AGAIN
from autoddl.sbp.rewrites.recomputed_layers import in_layers
from autoddl.sbp.shards import local_bytes
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.result import Assignment

PARTS = 64  # of what is made again: as exactly the least of it is found


@dataclass(frozen=True)
class _Copies:
    """What is made again of a layer, by the numbers of its ops in their order.

    Each takes `seconds` to make and `size_bytes` to keep; `inputs` are others that it reads, and `read`
    tells whether the backward pass does.
    """

    seconds: tuple[float, ...]
    size_bytes: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    read: tuple[bool, ...]

    def needed(self, kept: Collection[int]) -> frozenset[int]:
        """Return the ops that have to be run again where the results of some are kept."""
        found = set[int]()
        wanted = [op for op, read in enumerate(self.read) if read]
        while wanted:
            op = wanted.pop()
            if op not in kept and op not in found:
                found.add(op)
                wanted += self.inputs[op]
        return frozenset(found)

    def in_turn(self) -> list[tuple[float, frozenset[int]]]:
        """Return what is to be run again after each result that is kept, with the seconds per byte.

        A result that brings more only behind another one comes when that does.
        """
        kept, now, least, found = set[int](), self.needed(()), math.inf, []
        while now:
            rates = {op: self._spared(now, {*kept, op}) / max(1, self.size_bytes[op]) for op in now}
            best = max(sorted(now), key=rates.__getitem__)
            least = min(least, rates[best])
            kept.add(best)
            now = self.needed(kept)
            found.append((least, now))
        return found

    def _spared(self, now: Collection[int], kept: Collection[int]) -> float:
        rest = self.needed(kept)
        return math.fsum(self.seconds[op] for op in now if op not in rest)


def with_less(request: Request, program: Program, every: Solution) -> Solution:
    """Return a solution that makes as little again as fits; `every` does all that it can of a program."""
    turns, best, fits = _turns(every.found.assigned(0)), every, 0
    too_many, middle = len(turns), len(turns) - 1  # nothing again comes first
    while too_many - fits > max(1, len(turns) // PARTS):
        found = with_again(request, program, every, turns[middle])
        if request.limit_bytes is None or found.row.counted_bytes <= request.limit_bytes:
            best, fits = found, middle
        else:
            too_many = middle
        middle = (fits + too_many) // 2
    return best


def with_again(
    request: Request, program: Program, like: Solution, again: Collection[str]
) -> Solution:
    """Return the solution that makes the results of these ops again, in the states of another one."""
    one, program = like.candidate, in_layers(program, again)
    strides = like.found.assigned(0).layout.has_strides
    problem = replace(request, program=program).problem(one.mesh, ways=(one.way,), strides=strides)
    if one.way.compute_stream and request.limit_bytes is not None:
        problem = SavedTensors.apply(problem).network
    assigned = Assigned(problem, _in_states_of(like.found.assigned(0), problem))
    result = problem.result(like.result.solver, assigned.assignment)
    found = replace(
        like,
        candidate=replace(one, recomputed=len(again)),
        found=OneStage(assigned),
        result=replace(result, cost_s=assigned.step_s),
        cost_s=assigned.step_s,
    )
    return replace(found, judged_s=found.row.step_s)


def _turns(assigned: Assigned) -> Sequence[Collection[str]]:
    """Return the ops that are run again: all, then fewer and fewer, down to none."""
    layers: dict[str, list[Op]] = {}  # the last one comes first
    for op in assigned.problem.program.ops:
        if _is_copy(op.name):
            layers.setdefault(layer_path(op.module), []).append(op)
    seconds, sizes = _seconds(assigned), _sizes(assigned)
    in_turn = cache(_Copies.in_turn)  # most layers are alike
    turns = [
        (-rate, number, turn, ops, rest)
        for number, ops in enumerate(layers.values())
        for turn, (rate, rest) in enumerate(in_turn(_copies(assigned, ops, seconds, sizes)))
    ]
    now = {op.name for ops in layers.values() for op in ops}
    found = [_originals(now)]
    for *_, ops, rest in sorted(turns, key=lambda each: each[:3]):
        now -= {op.name for number, op in enumerate(ops) if number not in rest}
        found.append(_originals(now))
    return found


def _copies(
    assigned: Assigned, ops: Sequence[Op], seconds: Mapping[str, float], sizes: Mapping[str, int]
) -> _Copies:
    """Return what is known of the copies of a layer."""
    readers = assigned.problem.program.consumers
    place = {name: number for number, op in enumerate(ops) for _, name in op.outputs}
    read = {n for n in place if any(not _is_copy(op.name) for op, _ in readers.get(n, ()))}
    return _Copies(
        tuple(float(f"{seconds[op.name]:.6g}") for op in ops),
        tuple(sum(sizes[name] for _, name in op.outputs) for op in ops),
        tuple(tuple(place[name] for _, name in op.inputs if name in place) for op in ops),
        tuple(any(name in read for _, name in op.outputs) for op in ops),
    )


def _originals(copies: Collection[str]) -> frozenset[str]:
    return frozenset(name.removeprefix(AGAIN) for name in copies)


def _is_copy(name: str) -> bool:
    return name.startswith(AGAIN)


def _seconds(assigned: Assigned) -> dict[str, float]:
    """Return what each copy takes, with the redistributions of what it makes."""
    problem, found = assigned.problem, defaultdict[str, float](float)
    variables, prices, layout = problem.variables, problem.setting.prices, assigned.layout
    for name, domain, choice in zip(
        variables.name, variables.domain.tolist(), assigned.assignment, strict=True
    ):
        if _is_copy(name):
            found[name] += float(variables.domains[domain].compute_s[choice])
    for moved in layout.redistributions:
        if _is_copy(moved.tensor):
            start = layout.made[moved.tensor]
            boxings = prices.path(moved.tensor, start, moved.path)
            found[problem.program.producer[moved.tensor].name] += sum(b.seconds for b in boxings)
    return found


def _sizes(assigned: Assigned) -> dict[str, int]:
    """Return the bytes of what copies make, on each device."""
    program, mesh = assigned.problem.program, assigned.problem.mesh.cuts
    return {
        name: local_bytes(program.tensor[name], state, mesh)
        for name, state in assigned.layout.made.items()
        if _is_copy(name)
    }


def _in_states_of(known: Assigned, problem: CostNetwork) -> Assignment:
    """Return the assignment of a problem with the choices of one that has all its ops, and more.

    What waits for the backward pass here alone does so as its first reader wants it.
    """
    ours, theirs = problem.variables, known.problem.variables
    chosen = {
        (theirs.kinds[kind], name): choice
        for kind, name, choice in zip(
            theirs.kind.tolist(), theirs.name, known.assignment, strict=True
        )
    }
    keys = [
        (ours.kinds[kind], name) for kind, name in zip(ours.kind.tolist(), ours.name, strict=True)
    ]
    found, saved = np.array([chosen.get(key, -1) for key in keys]), SavedTensors(problem)
    others = np.asarray(saved.as_read(found[~saved.saved]))
    return Assignment(np.where(found < 0, others, found))
