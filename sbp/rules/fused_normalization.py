"""BatchNorm with ReLU, and optionally an addend before it, in one op.

y = relu(gamma * normalised(x) + beta + addend). `reserve_space` holds a bit per element of y that
says whether the ReLU was open, packed in the order of memory into 32-bit words. Cutting the batch
cuts whole words where the size is a multiple of 32. A cut over channels, exact as it is, would
interleave other bits and is left out, but for channels that are the outermost dim of more than one
element, where the words stay in order.

An engine that sizes `reserve_space` by shard and calls it B executes none of these cuts: no other
signature of the gradient op could read it.

Statistics over a part of the batch are not those of the whole batch: cuts of it are approximate
("local_batchnorm"); statistics and running averages then differ between devices (OWN).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autoddl.sbp.rules.batchnorm import LOCAL_STATISTICS
from autoddl.sbp.rules.maps import elements, positive, uncut
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

_WORD = 32  # bits
_APPROXIMATE = {"n": LOCAL_STATISTICS}
_STATISTICS = frozenset({"mean_0", "inv_variance_0", "moving_mean_0", "moving_variance_0"})
_MOVING = ("moving_mean_0", "moving_variance_0")
_LARGE = ("x_0", "addend_0", "y_0", "dy_0", "dx_0", "addend_diff_0")
_PER_CHANNEL = (
    "moving_mean_0", "moving_variance_0", "gamma_0", "beta_0", "mean_0", "inv_variance_0",
    "gamma_diff_0", "beta_diff_0",
)  # fmt: skip


def _map(view: OpView) -> IndexMap:
    """Map batch "n" or, where the words of the bit mask allow it, channels "c"."""
    shape = view.shape["x_0"]
    axis = _axis(view)
    cut = "c" if all(size == 1 for size in shape[:axis]) else "n"
    if elements(shape) % _WORD:
        cut = ""  # the last word is not full: shards would pad theirs elsewhere
    place = axis if cut == "c" else 0
    large: Dims = tuple(cut if cut and i == place else None for i in range(len(shape)))
    channels: Dims = ("c" if cut == "c" else None,)
    dims = uncut(view, view.inputs + view.outputs)
    dims |= {name: large for name in _LARGE if name in view.shape}
    dims |= {name: channels for name in _PER_CHANNEL if name in view.shape}
    if "reserve_space_0" in view.shape:
        dims["reserve_space_0"] = (cut or None,)
    return IndexMap(dims)


def _forward_map(view: OpView) -> IndexMap:
    """Map y and its statistics: those of a part of the batch pass for those of all of it."""
    training = view.attr["training"]
    approximate = _APPROXIMATE if training else {}
    return replace(_map(view), approximate=approximate, own=_STATISTICS, whole=_STATISTICS)


def _grad_map(view: OpView) -> IndexMap:
    """Map gradients: those of the parameters sum over the batch, beta and y are never read."""
    return replace(
        _map(view),
        summed=frozenset("n"),
        linear=(linear("dy_0"), linear("gamma_0 -> dx_0")),
        shape_only=frozenset({"beta_0", "y_0"}) & {*view.inputs},
        approximate=_APPROXIMATE,
        own=_STATISTICS,
    )


def _axis(view: OpView) -> int:
    return int(view.attr["axis"]) % len(view.shape["x_0"])


def pack_bits(mask: Array) -> Array:
    """Pack a boolean array into words of 32 bits in the order of memory, lowest bit first."""
    bits = np.zeros((math.ceil(mask.size / _WORD), _WORD), dtype=np.int64)
    bits.reshape(-1)[: mask.size] = mask.ravel()
    return np.asarray(bits @ (1 << np.arange(_WORD, dtype=np.int64)))


def unpack_bits(words: Array, shape: Shape) -> Array:
    """Undo `pack_bits` for an array of this shape."""
    bits = words[:, None].astype(np.int64) >> np.arange(_WORD) & 1
    return np.asarray(bits.ravel()[: math.prod(shape)].reshape(shape) != 0)


def _per_channel(op: LocalOp, value: Array) -> Array:
    """Return an array with one element per channel so that it broadcasts to x."""
    shape = [1] * op.inputs["x_0"].ndim
    shape[_axis(op.view)] = -1
    return value.reshape(shape)


def _other_axes(op: LocalOp) -> tuple[int, ...]:
    return tuple(i for i in range(op.inputs["x_0"].ndim) if i != _axis(op.view))


def _forward(op: LocalOp) -> dict[str, Array]:
    """Compute all outputs and the new running averages (with the unbiased variance)."""
    x, attr, axes = op.inputs["x_0"], op.view.attr, _other_axes(op)
    moving = {name: op.inputs[name] for name in _MOVING if name in op.inputs}
    mean: Array
    variance: Array
    if attr["training"]:
        mean, variance = x.mean(axis=axes), x.var(axis=axes)
        count = x.size // mean.size
        batch = {_MOVING[0]: mean, _MOVING[1]: variance * count / max(count - 1, 1)}
        keep = attr["momentum"]
        moving = {name: keep * old + (1 - keep) * batch[name] for name, old in moving.items()}
    else:
        mean, variance = (moving[name] for name in _MOVING)
    inverse = 1 / np.sqrt(variance + attr["epsilon"])
    scale, shift = inverse * op.inputs["gamma_0"], op.inputs["beta_0"]
    y = (x - _per_channel(op, mean)) * _per_channel(op, scale) + _per_channel(op, shift)
    y = np.asarray(y + op.inputs.get("addend_0", 0.0))
    results = {
        "y_0": np.maximum(y, 0.0),
        "mean_0": mean,
        "inv_variance_0": inverse,
        "reserve_space_0": pack_bits(y > 0),
    }
    return {name: results[name] for name in op.view.outputs} | moving


def _grad(op: LocalOp) -> dict[str, Array]:
    x, axes = op.inputs["x_0"], _other_axes(op)
    is_open = unpack_bits(op.inputs["reserve_space_0"], x.shape)
    dy = np.where(is_open, op.inputs["dy_0"], 0.0)
    inverse = op.inputs["inv_variance_0"]
    normalised = (x - _per_channel(op, op.inputs["mean_0"])) * _per_channel(op, inverse)
    gamma_diff = np.asarray((dy * normalised).sum(axis=axes))
    beta_diff = np.asarray(dy.sum(axis=axes))
    count = x.size // beta_diff.size
    shared = _per_channel(op, beta_diff) + normalised * _per_channel(op, gamma_diff)
    scale = _per_channel(op, op.inputs["gamma_0"] * inverse)
    results = {
        "dx_0": scale * (dy - shared / count),
        "gamma_diff_0": gamma_diff,
        "beta_diff_0": beta_diff,
        "addend_diff_0": dy,
    }
    return {name: results[name] for name in op.view.outputs}


def _random_words(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw words of a packed mask."""
    return rng.integers(0, 1 << _WORD, view.shape[operand])


_POSITIVE = dict.fromkeys(("moving_variance_0", "inv_variance_0"), positive)
_FAMILY = "normalisation"
register(
    OpRule(
        "normalization_add_relu",
        _forward_map,
        _forward,
        lambda view: 10 * elements(view.shape["x_0"]),
        family=_FAMILY,
        samplers=_POSITIVE,
        writes=frozenset(_MOVING),
    ),
    OpRule(
        "normalization_add_relu_grad",
        _grad_map,
        _grad,
        lambda view: 12 * elements(view.shape["x_0"]),
        family=_FAMILY,
        samplers={**_POSITIVE, "reserve_space_0": _random_words},
    ),
)
