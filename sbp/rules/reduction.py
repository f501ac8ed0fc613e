"""Reductions: cutting a reduced dim gives P of sums, P(max) of maxima, P(min) of minima."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoddl.sbp.rules.maps import axes_of, dim_names, elements, reduced_dims, renamed, uncut
from autoddl.sbp.rules.registry import (
    Array,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    Sampler,
    Shape,
    linear,
    register,
)

# Op type: NumPy reference of (array, axes), what a cut along a reduced dim gives.
_REDUCTIONS: dict[str, tuple[Callable[[Array, Shape], Array], str]] = {
    "reduce_sum": (lambda x, axes: x.sum(axis=axes), "summed"),
    "reduce_max": (lambda x, axes: x.max(axis=axes), "maxed"),
    "reduce_min": (lambda x, axes: x.min(axis=axes), "minned"),
    "reduce_any": (lambda x, axes: 1.0 * (x != 0).any(axis=axes), "maxed"),
    "reduce_all": (lambda x, axes: 1.0 * (x != 0).all(axis=axes), "minned"),
    "reduce_prod": (lambda x, axes: x.prod(axis=axes), ""),  # a product of parts is no state
}


def _reduction(op_type: str, function: Callable[[Array, Shape], Array], kind: str) -> OpRule:
    def indices(view: OpView) -> IndexMap:
        """Map a reduction; reduced dims are named r0, r1, …, as engines may cut kept ones only."""
        shape, axes = view.shape["input_tensor_0"], axes_of(view, "axis", "input_tensor_0")
        kept = reduced_dims(view.shape["output_tensor_0"], shape, axes)
        names = renamed(dim_names(len(shape)), {f"d{axis}" for axis in axes})
        dims = {"input_tensor_0": names, "output_tensor_0": kept}
        groups = (linear("input_tensor_0"),) if kind == "summed" else ()
        over = {kind: frozenset(f"r{axis}" for axis in axes)}
        return IndexMap(
            dims,
            linear=groups,
            summed=over.get("summed", frozenset()),
            maxed=over.get("maxed", frozenset()),
            minned=over.get("minned", frozenset()),
        )

    def reference(op: LocalOp) -> dict[str, Array]:
        axes = axes_of(op.view, "axis", "input_tensor_0")
        result = np.asarray(function(op.inputs["input_tensor_0"], axes))
        return {"output_tensor_0": result.reshape(op.view.shape["output_tensor_0"])}

    return OpRule(
        op_type,
        indices,
        reference,
        lambda view: elements(view.shape["input_tensor_0"]),
        family="reduction",
        samplers={"input_tensor_0": _TRUTHS[op_type]} if op_type in _TRUTHS else {},
    )


def _rarely(value: float) -> Sampler:
    """Draw zeros and ones with one or a few of `value` in what makes one result, or none."""

    def draw(view: OpView, operand: str, rng: np.random.Generator) -> Array:
        rate = elements(view.shape[view.outputs[0]]) / elements(view.shape[operand])
        return np.where(rng.random(view.shape[operand]) < rate, value, 1 - value)

    return draw


_TRUTHS = {"reduce_any": _rarely(1.0), "reduce_all": _rarely(0.0)}


def _reduce_sum_like_map(view: OpView) -> IndexMap:
    """Map reduce_sum_like, the gradient of broadcasting."""
    shape, axes = view.shape["x_0"], _like_axes(view)
    small = reduced_dims(view.shape["like_0"], shape, axes)
    return IndexMap(
        {"x_0": dim_names(len(shape)), "like_0": small, "y_0": small},
        summed=frozenset(f"d{axis}" for axis in axes),
        linear=(linear("x_0"),),
        shape_only=frozenset({"like_0"}),
    )


def _like_axes(view: OpView) -> tuple[int, ...]:
    # An empty list means that nothing is summed: the shapes were equal.
    return axes_of(view, "axis", "x_0") if view.attr["axis"] else ()


def _reduce_sum_like(op: LocalOp) -> dict[str, Array]:
    total = op.inputs["x_0"].sum(axis=_like_axes(op.view))
    return {"y_0": np.asarray(total).reshape(op.view.shape["y_0"])}


def _square_sum_map(view: OpView) -> IndexMap:
    """Map a sum of squares over all inputs: they are cut together, in the dims that all of them have."""
    shared = dim_names(min(len(view.shape[name]) for name in view.inputs))
    dims = {n: shared + (None,) * (len(view.shape[n]) - len(shared)) for n in view.inputs}
    summed = frozenset(name for name in shared if name is not None)
    return IndexMap({**dims, **uncut(view, view.outputs)}, summed=summed)


def _root_map(view: OpView) -> IndexMap:
    """Map the root of a sum of squares, which is no sum of the roots of parts."""
    return IndexMap(uncut(view, view.inputs + view.outputs))


def _square_sum(op: LocalOp) -> dict[str, Array]:
    total = np.sum([np.sum(x**2) for x in op.inputs.values()])
    if op.view.type == "sqrt_square_sum":
        total = np.sqrt(total)
    return {"y_0": np.asarray(total).reshape(op.view.shape["y_0"])}


_SQUARE_SUMS = {
    "square_sum": _square_sum_map,
    "multi_square_sum": _square_sum_map,
    "sqrt_square_sum": _root_map,
}

register(
    *(_reduction(name, *row) for name, row in _REDUCTIONS.items()),
    OpRule(
        "reduce_sum_like",
        _reduce_sum_like_map,
        _reduce_sum_like,
        lambda view: elements(view.shape["x_0"]),
        family="reduction",
    ),
    *(
        OpRule(
            name,
            indices,
            _square_sum,
            lambda view: 2 * sum(elements(view.shape[operand]) for operand in view.inputs),
            family="reduction",
        )
        for name, indices in _SQUARE_SUMS.items()
    ),
)
