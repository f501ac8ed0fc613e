"""GroupNorm as a single op: the batch is cut, and the channels by whole groups.

Statistics have shape (batch, groups); group g normalises channels and space of its slice. The
number of local groups is read from the statistics, so a cut over groups is right as long as a
kernel does the same (the attribute `num_groups` counts all of them). Gradients of the parameters
sum over batch and space, for which they need no statistic: both can be cut.
"""

from __future__ import annotations

import numpy as np

from autoddl.sbp.rules.maps import dim_names, elements, positive
from autoddl.sbp.rules.registry import (
    Array,
    Dims,
    IndexMap,
    LocalOp,
    OpRule,
    OpView,
    Shape,
    linear,
    register,
)

_CHANNELS = ("gamma_0", "beta_0", "dgamma_0", "dbeta_0")
_STATISTICS = ("mean_0", "inv_variance_0")


def _channel_axis(view: OpView) -> int:
    """Return the channel axis of x; only the forward op knows channels-last."""
    last = view.attr.get("data_format", "channels_first") == "channels_last"
    return len(view.shape["x_0"]) - 1 if last else 1


def _dims(view: OpView, *, space: bool) -> dict[str, Dims]:
    """Name batch "n", channels by group "g" and, where they can be cut, the spatial dims."""
    axis, ndim = _channel_axis(view), len(view.shape["x_0"])
    # One group is one statistic, which can't be cut along with the channels.
    group = None if view.shape["mean_0"][1] == 1 and not space else "g"
    spatial = dim_names(ndim, "s") if space else (None,) * ndim
    large = tuple("n" if i == 0 else group if i == axis else spatial[i] for i in range(ndim))
    dims: dict[str, Dims] = dict.fromkeys(view.inputs + view.outputs, large)
    dims |= {name: (group,) for name in _CHANNELS if name in view.shape}
    one = None if view.shape["mean_0"][1] == 1 else group
    return dims | {name: ("n", one) for name in _STATISTICS}


def _forward_map(view: OpView) -> IndexMap:
    """Map y = normalised(x) * gamma + beta; an activation on top ends linearity."""
    affine = "gamma_0" in view.inputs and view.attr.get("activation", "none") == "none"
    groups = (linear("gamma_0 beta_0 -> y_0"),) if affine else ()
    return IndexMap(_dims(view, space=False), linear=groups)


def _input_grad_map(view: OpView) -> IndexMap:
    factors = [name for name in ("dy_0", "gamma_0") if name in view.inputs]
    return IndexMap(_dims(view, space=False), linear=tuple(map(linear, factors)))


def _param_grad_map(view: OpView) -> IndexMap:
    dims = _dims(view, space=True)
    summed = frozenset(i for i in dims["x_0"] if i is not None and i != "g")
    groups = ("dy_0", "x_0 mean_0 -> dgamma_0", "inv_variance_0 -> dgamma_0")
    return IndexMap(dims, summed=summed, linear=tuple(map(linear, groups)))


class _Grouped:
    """Arrays of one op as (batch, groups, channels of a group, space)."""

    def __init__(self, view: OpView) -> None:
        """Read sizes from x and the statistics."""
        self._axis = _channel_axis(view)
        batch, groups = view.shape[_STATISTICS[0]]
        self._shape = (batch, groups, view.shape["x_0"][self._axis] // groups, -1)

    def split(self, array: Array) -> Array:
        """Group an array of the shape of x."""
        return np.moveaxis(array, self._axis, 1).reshape(self._shape)

    def join(self, array: Array, shape: Shape) -> Array:
        """Undo `split`."""
        moved = (shape[0], shape[self._axis], *np.delete(shape, (0, self._axis)))
        return np.moveaxis(array.reshape(moved), 1, self._axis)

    def per_channel(self, vector: Array) -> Array:
        """Group an array with one element per channel."""
        return vector.reshape(1, *self._shape[1:3], 1)


def _group_norm(op: LocalOp) -> dict[str, Array]:
    attr, grouped = op.view.attr, _Grouped(op.view)
    x = grouped.split(op.inputs["x_0"])
    mean = x.mean(axis=(2, 3), keepdims=True)
    inverse = 1 / np.sqrt(x.var(axis=(2, 3), keepdims=True) + attr["epsilon"])
    y = (x - mean) * inverse
    if "gamma_0" in op.inputs:
        gamma, beta = (grouped.per_channel(op.inputs[name]) for name in ("gamma_0", "beta_0"))
        y = y * gamma + beta
    if attr.get("activation", "none") == "silu":
        y = y / (1 + np.exp(-y))
    return {
        "y_0": grouped.join(y, op.view.shape["y_0"]),
        "mean_0": mean[:, :, 0, 0],
        "inv_variance_0": inverse[:, :, 0, 0],
    }


def _normalised(op: LocalOp) -> tuple[Array, Array]:
    """Return the grouped normalised x, and 1 / deviation of the same rank."""
    mean, inverse = (op.inputs[name][:, :, None, None] for name in _STATISTICS)
    return (_Grouped(op.view).split(op.inputs["x_0"]) - mean) * inverse, inverse


def _group_norm_grad(op: LocalOp) -> dict[str, Array]:
    grouped = _Grouped(op.view)
    normalised, inverse = _normalised(op)
    g = grouped.split(op.inputs["dy_0"])
    if "gamma_0" in op.inputs:
        g = g * grouped.per_channel(op.inputs["gamma_0"])
    means = [np.mean(part, axis=(2, 3), keepdims=True) for part in (g, g * normalised)]
    dx = inverse * (g - means[0] - normalised * means[1])
    return {"dx_0": grouped.join(dx, op.view.shape["dx_0"])}


def _group_norm_param_grad(op: LocalOp) -> dict[str, Array]:
    normalised, _ = _normalised(op)
    dy = _Grouped(op.view).split(op.inputs["dy_0"])
    return {
        "dgamma_0": (dy * normalised).sum(axis=(0, 3)).ravel(),
        "dbeta_0": dy.sum(axis=(0, 3)).ravel(),
    }


_POSITIVE = {"inv_variance_0": positive}
_FAMILY = "normalisation"
register(
    OpRule(
        "group_norm", _forward_map, _group_norm, lambda v: 8 * elements(v.shape["x_0"]),
        family=_FAMILY,
    ),
    OpRule(
        "group_norm_grad", _input_grad_map, _group_norm_grad,
        lambda v: 11 * elements(v.shape["x_0"]), family=_FAMILY, samplers=_POSITIVE,
    ),
    OpRule(
        "group_norm_param_grad", _param_grad_map, _group_norm_param_grad,
        lambda v: 5 * elements(v.shape["x_0"]), family=_FAMILY, samplers=_POSITIVE,
    ),
)  # fmt: skip
