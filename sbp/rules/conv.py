"""Convolutions in one, two or three dims, transposed ones, and their gradients.

All of them relate a large image (batch n, channels c), a small one (batch n, channels k) and a filter
(k, c, *kernel), bilinearly: conv makes the small image, deconv and conv_data_grad the large one,
conv_filter_grad the filter. So n, c and k may be cut like the indices of a matrix product.

With groups a channel belongs to a group, and a device needs whole groups. An index map doesn't know on
how many devices it is cut, so channels are cut (together, as index g) only where every even cut of
both images ends between groups: where the greatest common divisor of both numbers of channels is the
number of groups, as in depthwise convolutions.

Space is cut only where windows don't overlap and tile the image (1×1 convolutions, patches): anything
else needs halos.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from autoddl.errors import RuleError
from autoddl.sbp.rules.maps import elements
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
from autoddl.sbp.rules.windows import (
    Windows,
    channels_first,
    channels_last,
    image_dims,
    last,
    space_of,
)

# Which operand of an op is the large image, the small image and the filter.
Roles = tuple[str, str, str]
CONV: Roles = ("in_0", "out_0", "weight_0")
DECONV: Roles = ("out_0", "in_0", "weight_0")
DATA_GRAD: Roles = ("dx_0", "dy_0", "filter_0")
FILTER_GRAD: Roles = ("x_0", "dy_0", "filter_diff_0")

# Fused operands that are added to the result: a bias, or an earlier gradient.
BIAS, ADDEND = "bias_0", "_add_to_output_0"


def _conv_map(roles: Roles) -> Callable[[OpView], IndexMap]:
    def indices(view: OpView) -> IndexMap:
        large, small, filter_ = roles
        c, k, per_group = _channel_indices(view, roles)
        fused = [name for name in (BIAS, ADDEND) if name in view.inputs]
        if fused and c != "g":
            # A cut of the summed channels makes P, and what is added would count on every device.
            c, k, per_group = (c, None, c) if large in view.outputs else (None, k, None)
        windows = Windows.of_conv(view)
        space = windows.tiled(space_of(view, large), space_of(view, small))
        whole: Dims = (None,) * len(space)
        dims = {
            large: image_dims(view, c, space),
            small: image_dims(view, k, space),
            filter_: (k, *whole, per_group) if channels_last(view) else (k, per_group, *whole),
        }
        made = view.outputs[0]
        dims |= {name: dims[made] for name in (ADDEND, "x_like_0") if name in view.inputs}
        dims |= {name: (c if made == large else k,) for name in fused if name == BIAS}
        factors = [name for name in roles if name != made]
        return IndexMap(
            dims,
            summed=frozenset(i for names in dims.values() for i in names if i is not None),
            linear=tuple(linear(" ".join([name, *fused])) for name in factors),
            shape_only=frozenset({"x_like_0"} & set(view.inputs)),
        )

    return indices


def _channel_indices(view: OpView, roles: Roles) -> Dims:
    """Return the indices of the large and the small image's channels, and of the filter's second."""
    axis = -1 if channels_last(view) else 1
    groups = view.attr["groups"]
    if groups == 1:
        return "c", "k", "c"
    channels = (view.shape[name][axis] for name in roles[:2])
    return ("g", "g", None) if math.gcd(*channels) == groups else (None, None, None)


def _groups(op: LocalOp, large: Shape, filter_: Shape) -> int:
    """Return how many groups this device has: fewer than the attribute says where g is cut."""
    groups, rest = divmod(large[1], filter_[1])
    if rest or not groups:
        raise RuleError(
            f"{op.view.type}: {large[1]} channels for a filter of shape {filter_}; give each device "
            f"whole groups of {filter_[1]}"
        )
    return groups


def _grouped(x: Array, groups: int, axis: int) -> Array:
    """Split the channel axis into (groups, channels per group)."""
    shape = x.shape
    return x.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])


def _make_small(roles: Roles) -> Callable[[LocalOp], dict[str, Array]]:
    def reference(op: LocalOp) -> dict[str, Array]:
        large, small, filter_ = roles
        x, shape = op.inputs[large], op.view.shape[small]
        groups = _groups(op, x.shape, op.inputs[filter_].shape)
        windows = Windows.of_conv(op.view)
        weight = _grouped(op.inputs[filter_], groups, 0)
        image = windows.pad(x, shape[2:])
        out = np.zeros((shape[0], groups, shape[1] // groups, *shape[2:]))
        for position, pixels in windows.positions(shape[2:]):
            met = _grouped(image[last(pixels)], groups, 1)
            out += np.einsum("ngc...,gkc->ngk...", met, weight[last(position)])
        return {small: _added(op, out.reshape(shape))}

    return reference


def _make_large(roles: Roles) -> Callable[[LocalOp], dict[str, Array]]:
    def reference(op: LocalOp) -> dict[str, Array]:
        large, small, filter_ = roles
        shape, y = op.view.shape[large], op.inputs[small]
        groups = _groups(op, shape, op.inputs[filter_].shape)
        windows = Windows.of_conv(op.view)
        weight = _grouped(op.inputs[filter_], groups, 0)
        dy = _grouped(y, groups, 1)
        image = windows.pad(np.zeros(shape), y.shape[2:])
        for position, pixels in windows.positions(y.shape[2:]):
            part = np.einsum("ngk...,gkc->ngc...", dy, weight[last(position)])
            image[last(pixels)] += part.reshape(*shape[:2], *y.shape[2:])
        return {large: _added(op, windows.inside(image, shape))}

    return reference


def _make_filter(roles: Roles) -> Callable[[LocalOp], dict[str, Array]]:
    def reference(op: LocalOp) -> dict[str, Array]:
        large, small, filter_ = roles
        x, y, shape = op.inputs[large], op.inputs[small], op.view.shape[filter_]
        groups = _groups(op, x.shape, shape)
        windows = Windows.of_conv(op.view)
        dy = _grouped(y, groups, 1)
        image = windows.pad(x, y.shape[2:])
        diff = np.zeros(shape)
        for position, pixels in windows.positions(y.shape[2:]):
            met = _grouped(image[last(pixels)], groups, 1)
            part = np.einsum("ngkp,ngcp->gkc", _flat(dy), _flat(met))
            diff[last(position)] = part.reshape(shape[:2])
        return {filter_: diff}

    return reference


def _flat(grouped: Array) -> Array:
    """Return (batch, groups, channels, pixels)."""
    return grouped.reshape(*grouped.shape[:3], -1)


def _added(op: LocalOp, result: Array) -> Array:
    if BIAS in op.inputs:
        result = result + op.inputs[BIAS].reshape(1, -1, *(1,) * (result.ndim - 2))
    return result + op.inputs[ADDEND] if ADDEND in op.inputs else result


def _flops(roles: Roles) -> Callable[[OpView], float]:
    """Count a product and a sum for each pixel of the small image and weight of its channel."""

    def flops(view: OpView) -> float:
        _, small, filter_ = roles
        per_pixel = elements(view.shape[filter_]) / view.shape[filter_][0]
        return 2 * elements(view.shape[small]) * per_pixel

    return flops


Maker = Callable[[Roles], Callable[[LocalOp], dict[str, Array]]]


def _rules(op_types: Iterable[str], roles: Roles, make: Maker) -> list[OpRule]:
    reference = channels_first(make(roles))
    return [
        OpRule(name, _conv_map(roles), reference, _flops(roles), family="conv") for name in op_types
    ]


register(
    *_rules(("conv1d", "conv2d", "conv3d"), CONV, _make_small),
    *_rules(("deconv1d", "deconv2d", "deconv3d"), DECONV, _make_large),
    *_rules(("conv_data_grad",), DATA_GRAD, _make_large),
    *_rules(("conv_filter_grad",), FILTER_GRAD, _make_filter),
)
