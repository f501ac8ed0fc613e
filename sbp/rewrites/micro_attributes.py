"""Attributes of ops that hold shapes of the batch, or one over its size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.rules.registry import Shape

Shapes = Mapping[str, tuple[Shape, Shape]]
"""Operand → (shape in the whole batch, in a micro-batch)."""

_SHAPES = frozenset({"shape", "expand_shape", "like_shape", "stop"})
_SUMS = {"reduce_sum": ("input_tensor_0", "output_tensor_0")}
_REPETITIONS = {"broadcast_like": ("y_0", "x_0"), "expand": ("out_0", "in_0")}


def resized(op: Op, shapes: Shapes, factor: float | None) -> tuple[tuple[str, Any], ...]:
    """Return the attributes of an op at the micro-batch's shapes.

    `factor`, where given, is the new operand of a multiplication (see `mean_factors`).
    """
    attrs = {name: _resized(op, name, value, shapes) for name, value in op.attrs}
    if factor is not None:
        attrs["float_operand"] = factor
    return tuple(attrs.items())


def _resized(op: Op, name: str, value: Any, shapes: Shapes) -> Any:
    if name in _SHAPES and isinstance(value, tuple):
        return _as_long(value, shapes)
    if name == "length" and "dim" in op.attr:  # narrow: the dim that is taken
        large, small = shapes[op.inputs[0][0]]
        dim = op.attr["dim"] % len(large)
        return small[dim] if value == large[dim] else value
    if op.type == "arange" and name in ("integer_limit", "float_limit"):
        kind = name.partition("_")[0]
        ((large, small),) = shapes.values()
        return value - (large[0] - small[0]) * op.attr[f"{kind}_delta"]
    return value


def _as_long(value: tuple[Any, ...], shapes: Shapes) -> tuple[Any, ...]:
    """Return sizes with those of the whole batch replaced by the micro-batch's."""
    for large, small in reversed(tuple(shapes.values())):
        if large != small and len(large) == len(value):
            return tuple(b if v == a else v for v, a, b in zip(value, large, small, strict=True))
    return value


def mean_factors(program: Program, tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the new operands of the multiplications by 1/n that make means of sums over the batch.

    `tensors` are those of the micro-batch. The engine writes a mean as reduce_sum and scalar_mul, and
    its gradient as scalar_mul and a repetition; n is what the sum adds up (the repetition makes).
    """
    found = {}
    for op in (op for op in program.ops if op.type == "scalar_mul"):
        factor = op.attr.get("float_operand", 0.0)
        for large, small in _ratios(program, tensors, op):
            if large != small and math.isclose(factor * large, 1.0, rel_tol=1e-6):
                found[op.name] = 1 / small
    return found


def _ratios(
    program: Program, tensors: Mapping[str, Tensor], op: Op
) -> Iterator[tuple[float, float]]:
    """Yield elements added up per result before `op`, or repetitions after it: whole, micro-batch."""
    before = program.producer.get(op.inputs[0][1])
    after = [reader for reader, _ in program.consumers.get(op.outputs[0][1], ())]
    for other, table in ((before, _SUMS), *((reader, _REPETITIONS) for reader in after)):
        if other is not None and other.type in table:
            named = dict(other.operands)
            large, small = (named[operand] for operand in table[other.type])
            whole, part = (
                of[large].elements / max(1, of[small].elements) for of in (program.tensor, tensors)
            )
            yield whole, part
