"""What OneFlow does on request (`nccl.enable_use_compute_stream`): boxings as ops of the compute stream.

They are then ops like others: a step runs them and everything else one after another, in one order,
and their results are reused as other results are. That takes less memory, and nothing overlaps.

On 4 devices S1 → B of 8 MB becomes an op of 8 MB with a workspace of 8 MB, in which pieces lie one
behind the other; B → P stays a boxing.

Source: OneFlow 0.9, core/job_rewriter/insert_nccl_logical_op_pass.cpp, user/kernels/nccl_logical_*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, pairwise

import numpy as np

from autoddl.compiled import compiled
from autoddl.engine.oneflow.model.memory.task_graph import PARAMETER, Flags, Ints, RankTasks, Table
from autoddl.ragged import inverse
from autoddl.sbp.program import Program
from autoddl.sbp.state import B, NdSbp, Sbp

AXES = 2  # OneFlow converts boxings on so many axes, those of equal changes side by side as one
NOT_FINITE = "DynamicLossScale-CountNotFinite"  # in the name of a scaler's tensor
Change = tuple[int, Sbp, Sbp]


@lru_cache(maxsize=1 << 14)
def is_converted(before: NdSbp, after: NdSbp, mesh: tuple[int, ...]) -> bool:
    """Tell whether OneFlow makes an op of the boxing from one state to another."""
    return workspace_bytes((before, after), (0, 0), mesh) is not None


def can_be_chained(sizes: Sequence[int], program: Program) -> bool:
    """Tell whether OneFlow can join the ops of stages on so many devices to logical chains.

    The chain of each stage waits for the next one's, which OneFlow connects only among equal numbers of
    devices, or behind a single one. Where a scaler looks for gradients that are not finite, whose count
    is among the tensors of the program, chains of two stages would wait for each other.
    """
    joined = all(size in (1, behind) for size, behind in pairwise(sizes))
    return joined and not any(NOT_FINITE in tensor.name for tensor in program.tensors)


def workspace_bytes(
    states: tuple[NdSbp, NdSbp], sizes: tuple[int, int], mesh: Sequence[int]
) -> int | None:
    """Return the workspace of the op that replaces a boxing; None where OneFlow leaves the boxing.

    `states` and `sizes` (bytes on one device) are those before and after. Where the pass has no
    collective for a change, each device sends every other its part, through buffers of all parts.
    """
    before, after = sizes
    axes = _reduced(states, mesh)
    if len(axes) > AXES:
        return None
    changed = [axis for axis in axes if axis[1] != axis[2]]
    if len(changed) == 1 and (changed[0] is axes[-1] or _outer_sum(axes)):
        _, old, new = changed[0]
        if new.kind == "P":
            return None
        scattered = old.kind == "P" and new.is_split
        if old != B and not (scattered and len(axes) > 1):
            cuts = (old, new) if old.is_split and new.is_split else (old if new == B else new,)
            packed = sum(cut.is_split and cut.dim != 0 for cut in cuts)
            return packed * max(before, after)
    if any(new.kind == "P" for _, _, new in axes):
        return None
    return _exchanged(axes, before, after)


def _reduced(states: tuple[NdSbp, NdSbp], mesh: Sequence[int]) -> list[Change]:
    """Return (devices, before, after) of each axis; neighbours with equal states are one."""
    pairs = [(n, old, new) for n, old, new in zip(mesh, *states, strict=True) if n > 1]
    return [
        (math.prod(axis[0] for axis in equal), old, new)
        for (old, new), equal in groupby(pairs, key=lambda axis: axis[1:])
    ]


def _outer_sum(axes: Sequence[Change]) -> bool:
    """Tell whether only the outer axis changes, from a partial sum to the whole."""
    (_, old, new), *inner = axes
    return old.kind == "P" and new == B and all(old == new for _, old, new in inner)


def _exchanged(axes: Sequence[Change], before: int, after: int) -> int:
    """Return the bytes of the buffers in which devices send each other parts."""
    sent, received = before, after
    for count, old, new in axes:
        if old == new:
            continue
        if old == B:
            sent //= count
        elif new == B:
            sent *= count
        if old.kind == "P":
            received *= count
    summed = any(old.kind == "P" for _, old, _ in axes)
    return sent + received + (after if summed else 0)


def stream_order(rank: RankTasks) -> Ints:
    """Return the tasks of a rank in the order of its one stream.

    OneFlow takes its graph breadth first, with the newest readers of a result first, and runs the op
    that replaces a boxing just before what reads it. An update of a variable waits for the tasks that
    read the variable as it was.
    """
    tasks, buffers = rank.tasks, rank.buffers
    inner = tasks.transfer | tasks.inserted
    nodes = tasks.order.argsort(kind="stable")
    nodes = nodes[~inner[nodes]]
    variable = (tasks.first[buffers.producer] == buffers.origin) & (buffers.kind == PARAMETER)
    order = _in_turn(
        *rank.before, *tasks.reads, *rank.readers, variable, tasks.updates, inner, nodes
    )
    return _early(rank, order) if rank.accumulates else order


def _early(rank: RankTasks, order: Ints) -> Ints:
    """Return an order with the boxings of sums right behind what they read.

    OneFlow inserts these where their source is, others where their reader is.
    """
    before, place = rank.before, inverse(order)
    moved = np.flatnonzero(rank.tasks.inserted & rank.tasks.updates)
    turn, found = 2 * place, before.take(moved)
    if len(moved):
        turn[moved] = 2 * np.maximum.reduceat(place[found.items], found.start[:-1]) + 1
    return np.asarray(turn.argsort(kind="stable"))


@compiled
def _sources(
    start: Ints, before: Ints, start_reads: Ints, reads: Ints, start_readers: Ints, readers: Ints,
    variable: Flags, updates: Flags, inner: Flags, nodes: Ints,
) -> tuple[Ints, Ints, Table]:  # fmt: skip
    """Return what waits for what as if boxings were not there.

    Those are how many tasks each of `nodes` waits for, and the reverse, newest first: the `last` pair
    of each task, for each pair who waits, and the pair before.
    """
    count = len(inner)
    waiting, last, seen = np.zeros(count, np.int64), np.full(count, -1), np.full(count, -1)
    pairs, used = np.empty((2, 2 * len(before)), np.int64), 0
    found, stack = np.empty(count, np.int64), np.empty(count, np.int64)
    for node in nodes:
        stack[0], left, many = node, 1, 0
        while left:
            left -= 1
            task = stack[left]
            for k in range(start[task], start[task + 1]):
                other = before[k]
                if seen[other] != node:
                    seen[other] = node
                    if inner[other]:
                        stack[left] = other
                        left += 1
                    else:
                        found[many] = other
                        many += 1
        for k in range(start_reads[node], start_reads[node + 1] if updates[node] else 0):
            if variable[reads[k]]:
                for n in range(start_readers[reads[k]], start_readers[reads[k] + 1]):
                    other = readers[n]
                    if not updates[other] and not inner[other] and seen[other] != node:
                        seen[other] = node
                        found[many] = other
                        many += 1
        waiting[node] = many
        if used + many > pairs.shape[1]:
            fewer, pairs = pairs, np.empty((2, 2 * (used + many)), np.int64)
            for k in range(used):
                pairs[0, k], pairs[1, k] = fewer[0, k], fewer[1, k]
        for k in range(many):
            pairs[0, used], pairs[1, used], last[found[k]] = node, last[found[k]], used
            used += 1
    return waiting, last, pairs


@compiled
def _in_turn(
    start: Ints, before: Ints, start_reads: Ints, reads: Ints, start_readers: Ints, readers: Ints,
    variable: Flags, updates: Flags, inner: Flags, nodes: Ints,
) -> Ints:  # fmt: skip
    """Return all tasks: `nodes` breadth first, each behind the parts of boxings that it waits for."""
    waiting, last, pairs = _sources(
        start, before, start_reads, reads, start_readers, readers, variable, updates, inner, nodes
    )
    count = len(start) - 1
    order, many = np.empty(count, np.int64), 0
    placed, stack = np.zeros(count, np.bool_), np.empty(len(before) + 1, np.int64)
    queue, end = np.empty(count + len(nodes), np.int64), 0
    for node in nodes:
        if waiting[node] == 0:
            queue[end] = node
            end += 1
    first, others = 0, 0
    while first < end or others < count:
        if first < end:
            task = queue[first]
            first += 1
        else:  # parts of boxings that nothing here waits for
            task = others
            others += 1
        stack[0], left = task, 1
        while left:
            number, missing = stack[left - 1], left
            for k in range(start[number + 1] - 1, start[number] - 1, -1):
                if not placed[before[k]]:
                    stack[missing] = before[k]
                    missing += 1
            if missing > left:
                left = missing
                continue
            left -= 1
            if not placed[number]:
                placed[number] = True
                order[many] = number
                many += 1
        if others:
            continue
        pair = last[task]
        while pair >= 0:
            task = pairs[0, pair]
            waiting[task] -= 1
            if waiting[task] == 0:
                queue[end] = task
                end += 1
            pair = pairs[1, pair]
    return order
