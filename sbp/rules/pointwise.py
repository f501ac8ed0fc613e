"""Builders of pointwise rules: tables of NumPy functions become rules that may cut every dim."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autoddl.sbp.rules.maps import elements
from autoddl.sbp.rules.registry import (
    Array,
    Dims,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    Sampler,
    Shape,
    linear,
)

Function = Callable[..., Array]


def pointwise(
    op_type: str,
    functions: Function | Sequence[Function],
    *,
    flop: float = 1,
    linear_in: Sequence[str] | Callable[[OpView], Sequence[str]] = (),
    samplers: Mapping[str, Sampler] | None = None,
) -> OpRule:
    """Return the rule of an op that computes every element of its outputs from one of each input.

    `functions` (one for each output) take the inputs by their names without number, such as `x` and
    `dy`, and the attributes as `a`; a single input is always `x`. Inputs are broadcast to the output;
    sums over broadcast dims are other ops. `flop` counts per element of the output; 0 makes the op a
    memory op. `linear_in` lists sets of inputs as the function `linear` reads them, for all ops or
    for one op.
    """
    each = (functions,) if callable(functions) else tuple(functions)
    names = [tuple(inspect.signature(function).parameters) for function in each]

    def indices(view: OpView) -> IndexMap:
        groups = linear_in(view) if callable(linear_in) else linear_in
        return IndexMap(broadcast_dims(view), linear=tuple(map(linear, groups)))

    def reference(op: LocalOp) -> dict[str, Array]:
        known: dict[str, Any] = {name[:-2]: array for name, array in op.inputs.items()}
        if len(op.inputs) == 1:
            (known["x"],) = op.inputs.values()
        known["a"] = op.view.attr
        return {
            output: np.asarray(function(*(known[name] for name in wanted)), dtype=float)
            for output, function, wanted in zip(op.view.outputs, each, names, strict=True)
        }

    return OpRule(
        op_type,
        indices,
        reference,
        lambda view: flop * elements(view.shape[view.outputs[0]]),
        family="elementwise" if flop else "memory",
        samplers=samplers or {},
    )


def broadcast_dims(view: OpView) -> dict[str, Dims]:
    """Name the dims of all operands after those of the output, to which inputs are broadcast.

    Dim i is d{i} where every input has it. Engines may treat it differently, so it is m{i} where an
    input lacks it, r{i} where one repeats it from size 1, and s{i} where one repeats it though the
    inputs have unequally many dims.
    """
    target = view.shape[view.outputs[0]]
    inputs = [view.shape[name] for name in view.inputs]
    names = [_index_name(i, target, inputs) for i in range(len(target))]
    return {name: _aligned(view.shape[name], target, names) for name in view.inputs + view.outputs}


def _index_name(i: int, target: Shape, inputs: Sequence[Shape]) -> str:
    sizes = [(1,) * (len(target) - len(shape)) + shape for shape in inputs]
    lacking = any(len(target) - len(shape) > i for shape in inputs)
    repeating = any(
        size[i] == 1 != target[i] and len(target) - len(shape) <= i
        for size, shape in zip(sizes, inputs, strict=True)
    )
    uneven = len({len(shape) for shape in inputs}) > 1
    kind = ("s" if uneven else "r") if repeating else "m" if lacking else "d"
    return f"{kind}{i}"


def _aligned(shape: Shape, target: Shape, names: Sequence[str]) -> Dims:
    offset = len(target) - len(shape)
    return tuple(
        names[i + offset] if size == target[i + offset] else None for i, size in enumerate(shape)
    )


def within(low: float, high: float) -> Sampler:
    """Return a sampler of uniform values in [low, high)."""

    def draw(view: OpView, operand: str, rng: np.random.Generator) -> Array:
        return rng.uniform(low, high, view.shape[operand])

    return draw


def one_of(*values: float) -> Sampler:
    """Return a sampler of these values, for ops that compare or branch."""

    def draw(view: OpView, operand: str, rng: np.random.Generator) -> Array:
        return rng.choice(np.array(values), view.shape[operand])

    return draw
