"""How an op's operands lie to each other: what makes kernels of one op type differ in speed by far.

oneDNN's CPU kernels for elementwise ops repeat the second input in a few ways at the
speed of memory: a row over a matrix, channels over images, one attention mask over all heads. For other
ways, and for the first input, there is only a reference kernel, which takes about 100 ns for each
element: a column over a matrix, a bias of each head over a batch, (8, 64, 64) to (32, 8, 64, 64).

Sums over the last dim are faster than over leading ones. Convolutions are a matrix product per image of
(channels × weights of a channel) and (weights of a channel × pixels): the fewer channels or pixels, the
more bytes are copied for each flop.

Source: the ways that are fast were measured: all of 1 to 5 dims, either input, 64K elements, one thread.
"""

from __future__ import annotations

from math import prod

from autoddl.sbp.rules.conv import CONV, DATA_GRAD, FILTER_GRAD
from autoddl.sbp.rules.registry import OpView, Shape
from autoddl.sbp.rules.windows import channels_last, space_of

REFERENCE = "reference"
"""An elementwise op repeats an input in a way for which there is only a reference kernel."""
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
_FAST = frozenset(
    f"broadcast_{name}" for name in ("add", "sub", "mul", "div", "maximum", "minimum")
)  # of two inputs, where kernels other than the reference one repeat the second
_PRODUCTS = ("broadcast_matmul", "broadcast_matmul_grad_b")
_OWN_KERNEL = ("broadcast_like",)  # as fast along any dim
_REDUCTIONS = ("reduce_sum", "reduce_sum_like", "reduce_max", "reduce_min", "reduce_prod")


def variant(view: OpView) -> str:
    """Return the variant of an op with these (local) shapes, or "" for the only or usual one."""
    if not view.inputs or not view.outputs:
        return ""
    if view.type in _REDUCTIONS:
        return _reduction(view)
    if view.type in _CONVOLUTIONS:
        return _convolution(view)
    two = len(view.inputs) == 2 and view.type.startswith("broadcast_")
    if two and view.type not in (*_PRODUCTS, *_OWN_KERNEL):
        return _broadcast(view)
    return ""


def _broadcast(view: OpView) -> str:
    """Tell whether the inputs have the output's shape, or the second is repeated in a fast way.

    With dims (samples, channels, *others), after ones in front up to four, the second may have
    any number of the last others, all samples or none, or no others and all channels.
    """
    output = view.shape[view.outputs[0]]
    first, second = (_padded(view.shape[name], output) for name in view.inputs)
    whole = _padded(output, output)
    if first == second == whole:
        return ""
    if first != whole or view.type not in _FAST:
        return REFERENCE
    samples, channels, *others = (size > 1 for size in second)
    if others != sorted(others):  # ones, then all others
        return REFERENCE
    if channels:
        return REFERENCE if any(others) else ""
    return REFERENCE if samples and not any(others) else ""


def _padded(shape: Shape, output: Shape) -> Shape:
    """Return a shape with ones in front, to as many dims as the output has and to four at least."""
    return (*(1,) * (max(len(output), 4) - len(shape)), *shape)


def _reduction(view: OpView) -> str:
    # Of inputs x and like, in any order, x is the larger one.
    whole = max((view.shape[name] for name in view.inputs), key=prod)
    result = view.shape[view.outputs[0]]
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
