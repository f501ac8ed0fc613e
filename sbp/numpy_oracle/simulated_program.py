"""The NumPy oracle of programs: run one on one device, or distributed on simulated ranks.

Each rank has its own local tensors and nothing else. It reads others' only where a delivery says so, and
knows no states: boxes, deliveries and attributes are all that is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autoddl.errors import RuleError
from autoddl.sbp.local_program.instructions import (
    Communication,
    Computation,
    LocalProgram,
    Property,
)
from autoddl.sbp.local_program.shard_boxes import Box
from autoddl.sbp.numpy_oracle.simulated_ops import on_one_device
from autoddl.sbp.numpy_oracle.simulated_tensors import Array, Locals
from autoddl.sbp.program import Program
from autoddl.sbp.rules.registry import LocalOp, OpView, find

Rank = dict[Property, Array]

_NEUTRAL = {"sum": 0.0, "max": -np.inf, "min": np.inf}
_COMBINE: Mapping[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def run_program(
    program: Program, values: Mapping[str, Array], *, updates: bool = False
) -> dict[str, Array]:
    """Run forward and backward of a captured step on one device, with the rules' references.

    `values` has the inputs and variables as whole arrays by tensor name; all tensors are returned.
    What ops update in place has its new value, parameters where `updates` are run, too.

    Raises:
        RuleError: an op type has no rule.
    """
    known = dict(values)
    for op in program.ops:
        if updates or op.phase != "optimizer":
            view = OpView.of(op, program.shapes(op))
            results = on_one_device(view, {name: known[tensor] for name, tensor in op.inputs})
            known |= {tensor: results[name] for name, tensor in op.operands if name in results}
    return known


def execute(local: LocalProgram, given: Mapping[str, Locals]) -> dict[Property, Locals]:
    """Return what the ranks hold in the end, of all properties that were ever established.

    `given` has by tensor the locals of inputs and variables. What is updated in place has its new value
    in the state in which it is kept.

    Raises:
        RuleError: an op type has no rule.
    """
    ranks: list[Rank] = [{} for _ in range(local.mesh.size)]
    for held in local.given:
        for rank, array in zip(ranks, given[held.property.tensor], strict=True):
            rank[held.property] = array
    for each in local.instructions:
        if isinstance(each, Computation):
            for number, rank in enumerate(ranks):
                rank |= compute(local, each, number, rank)
        else:
            communicate(each, ranks)
    return {key: [rank[key] for rank in ranks] for key in ranks[0]}


def compute(local: LocalProgram, each: Computation, number: int, rank: Rank) -> Rank:
    """Return what one rank makes of its local tensors.

    Raises:
        RuleError: the op type has no rule.
    """
    op, rule = local.program.op[each.op], find(each.type)
    if rule is None:
        raise RuleError(f"op type {each.type}: no rule, so no reference; register one first")
    held = dict(each.reads + each.establishes)
    shapes = {operand: held[operand].shape(number) for operand, _ in op.operands}
    attributes = {**op.attr, **dict(each.attributes[number])}
    view = OpView(op.type, tuple(dict(op.inputs)), tuple(dict(op.outputs)), shapes, attributes)
    inputs = {operand: rank[shard.property] for operand, shard in each.reads}
    starts = {operand: shard.start(number) for operand, shard in held.items()}
    results = rule.reference(LocalOp(view, inputs, starts))
    return {held[operand].property: value for operand, value in results.items()}


def communicate(each: Communication, ranks: Sequence[Rank]) -> None:
    """Let all ranks do a communication; each gives what deliveries take of its shard."""
    source, goal = each.reads.property, each.establishes.property
    parcels = [
        rank[source][_slices(d.taken)] for d in each.deliveries for rank in [ranks[d.sender]]
    ]
    for number, rank in enumerate(ranks):
        like, neutral = rank[source], _NEUTRAL[each.reduction]
        dtype = like.dtype if each.reduction == "sum" else float
        rank[goal] = np.full(each.establishes.shape(number), neutral, dtype)
    for delivery, parcel in zip(each.deliveries, parcels, strict=True):
        result, at = ranks[delivery.receiver][goal], _slices(delivery.put)
        result[at] = _COMBINE[each.reduction](result[at], parcel)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)
