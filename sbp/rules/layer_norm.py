"""LayerNorm and RMSNorm as single ops: rows are cut, the normalised dims stay whole.

The saved statistics run along the rows. Gradients of the parameters sum over the rows, so they are
P where rows are cut; they need no statistic of their own, so their columns can be cut, too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoddl.sbp.rules.maps import dim_names, elements, positive
from autoddl.sbp.rules.registry import (
    Array,
    Dims,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    linear,
    register,
)

_STATISTICS = ("mean_0", "inv_variance_0", "inv_rms_0")
_PARAMETERS = ("gamma_0", "beta_0", "weight_0")


def _rows(view: OpView) -> int:
    """Return how many leading dims the statistics have."""
    name = next(name for name in _STATISTICS if name in view.shape)
    return len(view.shape[name])


def _row_map(view: OpView, groups: tuple[str, ...]) -> IndexMap:
    """Map an op whose statistics have the leading dims of x; parameters have the other ones."""
    rows = dim_names(_rows(view))
    dims: dict[str, Dims] = {}
    for name in view.inputs + view.outputs:
        free: Dims = () if name in _PARAMETERS else rows
        dims[name] = (*free, *(None,) * (len(view.shape[name]) - len(free)))
    return IndexMap(dims, linear=tuple(map(linear, groups)))


def _forward_map(view: OpView) -> IndexMap:
    """Map y = normalised(x) * gamma + beta: linear in all parameters together."""
    parameters = [name for name in view.inputs if name in _PARAMETERS]
    return _row_map(view, (f"{' '.join(parameters)} -> y_0",) if parameters else ())


def _input_grad_map(view: OpView) -> IndexMap:
    """Map dx: linear in dy and in gamma, each together with what is added to the result."""
    extra = " _add_to_output_0" if "_add_to_output_0" in view.inputs else ""
    factors = ["dy_0", *(name for name in view.inputs if name in _PARAMETERS)]
    return _row_map(view, tuple(factor + extra for factor in factors))


def _param_grad_map(view: OpView) -> IndexMap:
    """Map sums over rows of dy and of dy * (x - mean) * inv_variance."""
    rows = dim_names(_rows(view))
    columns = dim_names(len(view.shape["dy_0"]) - len(rows), "c")
    dims = {name: rows if name in _STATISTICS else (*rows, *columns) for name in view.inputs}
    if "inv_rms_0" in view.inputs:
        groups: tuple[str, ...] = ("dy_0", "x_0", "inv_rms_0")
    else:
        groups = ("dy_0", "x_0 mean_0 -> gamma_diff_0", "inv_variance_0 -> gamma_diff_0")
    return IndexMap(
        {**dims, **dict.fromkeys(view.outputs, columns)},
        summed=frozenset(name for name in rows if name is not None),
        linear=tuple(map(linear, groups)),
    )


def _columns(op: LocalOp) -> tuple[int, ...]:
    """Return the normalised axes of x."""
    ndim = len(op.view.shape["x_0"])
    return tuple(range(_rows(op.view), ndim))


def _expanded(op: LocalOp, name: str) -> Array:
    """Return a statistic with a dim of size 1 for every normalised dim."""
    value = op.inputs[name]
    return value.reshape(value.shape + (1,) * len(_columns(op)))


def _layer_norm(op: LocalOp) -> dict[str, Array]:
    x, axes = op.inputs["x_0"], _columns(op)
    mean = x.mean(axis=axes)
    inverse = 1 / np.sqrt(x.var(axis=axes) + op.view.attr["epsilon"])
    ones = (1,) * len(axes)
    y = (x - mean.reshape(mean.shape + ones)) * inverse.reshape(mean.shape + ones)
    y = y * op.inputs.get("gamma_0", 1.0) + op.inputs.get("beta_0", 0.0)
    return {"y_0": y, "mean_0": mean, "inv_variance_0": inverse}


def _normalised_grad(g: Array, normalised: Array, inverse: Array, axes: tuple[int, ...]) -> Array:
    """Return the gradient of (x - mean) * inverse for the gradient `g` of the result."""
    means = [np.mean(part, axis=axes, keepdims=True) for part in (g, g * normalised)]
    return np.asarray(inverse * (g - means[0] - normalised * means[1]))


def _layer_norm_grad(op: LocalOp) -> dict[str, Array]:
    inverse = _expanded(op, "inv_variance_0")
    normalised = (op.inputs["x_0"] - _expanded(op, "mean_0")) * inverse
    g = op.inputs["dy_0"] * op.inputs.get("gamma_0", 1.0)
    dx = _normalised_grad(g, normalised, inverse, _columns(op))
    return {"dx_0": dx + op.inputs.get("_add_to_output_0", 0.0)}


def _layer_norm_param_grad(op: LocalOp) -> dict[str, Array]:
    dy, rows = op.inputs["dy_0"], tuple(range(_rows(op.view)))
    normalised = (op.inputs["x_0"] - _expanded(op, "mean_0")) * _expanded(op, "inv_variance_0")
    return {"gamma_diff_0": (dy * normalised).sum(axis=rows), "beta_diff_0": dy.sum(axis=rows)}


def _rms_norm(op: LocalOp) -> dict[str, Array]:
    x, axes = op.inputs["x_0"], _columns(op)
    inverse = 1 / np.sqrt(np.mean(x * x, axis=axes) + op.view.attr["epsilon"])
    y = x * inverse.reshape(inverse.shape + (1,) * len(axes)) * op.inputs.get("weight_0", 1.0)
    return {"y_0": y, "inv_rms_0": inverse}


def _rms_norm_grad(op: LocalOp) -> dict[str, Array]:
    inverse = _expanded(op, "inv_rms_0")
    normalised = op.inputs["x_0"] * inverse
    g = op.inputs["dy_0"] * op.inputs.get("weight_0", 1.0)
    shared = np.mean(g * normalised, axis=_columns(op), keepdims=True)
    return {"dx_0": inverse * (g - normalised * shared)}


def _rms_norm_param_grad(op: LocalOp) -> dict[str, Array]:
    scaled = op.inputs["dy_0"] * op.inputs["x_0"] * _expanded(op, "inv_rms_0")
    return {"weight_grad_0": scaled.sum(axis=tuple(range(_rows(op.view))))}


def _per_element(flop: float) -> Callable[[OpView], float]:
    return lambda view: flop * elements(view.shape["x_0"])


_POSITIVE = {"inv_variance_0": positive, "inv_rms_0": positive}


def _rule(
    name: str,
    indices: Callable[[OpView], IndexMap],
    reference: Callable[[LocalOp], dict[str, Array]],
    flop: float,
) -> OpRule:
    return OpRule(
        name, indices, reference, _per_element(flop), family="normalisation", samplers=_POSITIVE
    )


register(
    _rule("layer_norm", _forward_map, _layer_norm, 8),
    _rule("layer_norm_grad", _input_grad_map, _layer_norm_grad, 11),
    _rule("layer_norm_param_grad", _param_grad_map, _layer_norm_param_grad, 5),
    _rule("rms_norm", _forward_map, _rms_norm, 5),
    _rule("rms_norm_grad", _input_grad_map, _rms_norm_grad, 8),
    _rule("rms_norm_param_grad", _param_grad_map, _rms_norm_param_grad, 3),
)
