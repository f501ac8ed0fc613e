"""How an op's operands lie to each other: what makes kernels of one op type differ in speed by far.

OneFlow's CPU kernels broadcast a column over rows some fifty times slower than a row over columns,
sum over the last dim faster than over leading ones, and convolve by a matrix product per image of
(channels × weights of a channel) and (weights of a channel × pixels): the fewer channels or pixels,
the more bytes are copied for each flop.
"""

from __future__ import annotations

from math import prod

from autoddl.sbp.rules.conv import CONV, DATA_GRAD, FILTER_GRAD
from autoddl.sbp.rules.registry import OpView, Shape
from autoddl.sbp.rules.windows import channels_last, space_of

COLUMN = "column"
"""An elementwise op repeats elements of an input along the last dim."""
ALL, LEADING, TRAILING = "all", "leading", "trailing"
"""A reduction gives one element, or reduces dims other than the last, or the last with others."""

NARROW = {8: "narrow8", 16: "narrow16", 32: "narrow32"}
"""A convolution's matrix product has one side of about so many rows; wider ones are the usual ones."""

_CONVOLUTIONS = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), CONV),
    "conv_data_grad": DATA_GRAD,
    "conv_filter_grad": FILTER_GRAD,
}
# Channels that copy as much as a pixel more saves: a filter lies in the cache, columns don't.
_PIXEL = 4
_REDUCTIONS = ("reduce_sum", "reduce_sum_like", "reduce_max", "reduce_min", "reduce_prod")


def variant(view: OpView) -> str:
    """Return the variant of an op with these (local) shapes, or "" for the only or usual one."""
    if not view.inputs or not view.outputs:
        return ""
    if view.type in _REDUCTIONS:
        return _reduction(view)
    if view.type in _CONVOLUTIONS:
        return _convolution(view)
    if view.type.startswith("broadcast_") and len(view.inputs) == 2:
        return _broadcast([view.shape[i] for i in view.inputs], view.shape[view.outputs[0]])
    return ""


def _broadcast(inputs: list[Shape], output: Shape) -> str:
    """Compare the inputs with the output along its last dim that has more than one element."""
    wide = [dim for dim, size in enumerate(output) if size > 1]
    if not wide:
        return ""
    back = wide[-1] - len(output)
    for shape in inputs:
        size = shape[back] if len(shape) >= -back else 1
        if size == 1 and prod(shape) > 1:
            return COLUMN
    return ""


def _reduction(view: OpView) -> str:
    whole, result = view.shape[view.inputs[0]], view.shape[view.outputs[0]]
    if prod(result) == prod(whole):
        return ""
    if prod(result) <= 1:
        return ALL
    axes = view.attr.get("axis", ())
    last = len(whole) - 1
    return TRAILING if any(axis in (-1, last) for axis in axes) else LEADING


def _convolution(view: OpView) -> str:
    large, small, filter_ = _CONVOLUTIONS[view.type]
    axis = -1 if channels_last(view) else 1
    groups = max(1, view.shape[large][axis] // max(1, view.shape[filter_][axis]))
    channels = view.shape[filter_][0] // groups
    side = min(channels, _PIXEL * prod(space_of(view, small)))
    return next((name for size, name in NARROW.items() if side < 1.5 * size), "")
