"""Batch normalisation: channels may be cut; the batch only in evaluation, or as an approximation.

In training an op normalises with the statistics of the batch that it sees. Where the batch is cut,
every device has statistics of its own shard, and so do the running ones that the op updates in place
(`moving_mean`, `moving_variance`): they are B to the engine but differ between devices (OWN), so the op
and its gradient can only be cut alike. That is the usual data-parallel batch norm, and other numbers
than one device's; `local_batchnorm` permits it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoddl.sbp.program.ops_and_tensors import UNREAD
from autoddl.sbp.rules.maps import elements, positive
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

LOCAL_STATISTICS = "local_batchnorm"
_STATISTICS = frozenset({"mean_0", "inv_variance_0", "moving_mean_0", "moving_variance_0"})
_ADDED = "_add_to_output_0"  # in evaluation, where an op has it
_IMAGES = ("x_0", "y_0", "dy_0", "dx_0", _ADDED)


def _dims(view: OpView, *, space: bool) -> dict[str, Dims]:
    """Return the dims of images (batch n, channels c, space where asked for) and channel vectors."""
    axis = view.attr["axis"] % len(view.shape["x_0"])
    image: list[str | None] = [f"s{i}" if space else None for i in range(len(view.shape["x_0"]))]
    image[0], image[axis] = "n", "c"
    return {n: tuple(image) if n in _IMAGES else ("c",) for n in view.inputs + view.outputs}


def _forward_map(view: OpView) -> IndexMap:
    scaled = linear("beta_0 gamma_0 -> y_0")
    if not view.attr["training"]:
        added = f" {_ADDED}" if _ADDED in view.inputs else ""
        scaled = linear(f"beta_0 gamma_0{added} -> y_0")
        shifted = linear(f"beta_0 moving_mean_0 x_0{added} -> y_0")
        return IndexMap(_dims(view, space=True), linear=(scaled, shifted))
    return IndexMap(
        _dims(view, space=False),
        linear=(scaled,),
        approximate={"n": LOCAL_STATISTICS},
        own=_STATISTICS,
    )


def _backward_map(view: OpView) -> IndexMap:
    if "dx_0" in view.attr.get(UNREAD, ()):
        sums = _dims(view, space=True)
        space = {name for name in sums["x_0"] if name not in (None, "c")}
        return IndexMap(sums, summed=frozenset(space), linear=(linear("dy_0"),))
    return IndexMap(
        _dims(view, space=False),
        summed=frozenset({"n"}),
        linear=(linear("dy_0"), linear("gamma_0 -> dx_0")),
        approximate={"n": LOCAL_STATISTICS},
        own=_STATISTICS,
    )


def _over_channels(view: OpView) -> Callable[[Array], Array]:
    """Return what shapes a channel vector to multiply an image."""
    ndim = len(view.shape["x_0"])
    axis = view.attr["axis"] % ndim
    return lambda vector: vector.reshape([-1 if i == axis else 1 for i in range(ndim)])


def _reduced_axes(view: OpView) -> tuple[int, ...]:
    ndim = len(view.shape["x_0"])
    return tuple(i for i in range(ndim) if i != view.attr["axis"] % ndim)


def _forward(op: LocalOp) -> dict[str, Array]:
    """Normalise; in training also return the statistics and the new running ones."""
    inputs, attr, shaped = op.inputs, op.view.attr, _over_channels(op.view)
    x, axes = inputs["x_0"], _reduced_axes(op.view)
    training = attr["training"]
    mean = x.mean(axis=axes) if training else inputs["moving_mean_0"]
    variance = x.var(axis=axes) if training else inputs["moving_variance_0"]
    inverse = 1 / np.sqrt(variance + attr["epsilon"])
    y = (x - shaped(mean)) * shaped(inverse * inputs["gamma_0"]) + shaped(inputs["beta_0"])
    if not training:
        return {"y_0": y + inputs.get(_ADDED, 0.0)}
    results = {"y_0": y, "mean_0": mean, "inv_variance_0": inverse}
    if "moving_mean_0" in inputs:
        new = {"moving_mean_0": mean, "moving_variance_0": x.var(axis=axes, ddof=1)}
        kept = attr["momentum"]
        results |= {n: kept * inputs[n] + (1 - kept) * value for n, value in new.items()}
    return results


def _backward(op: LocalOp) -> dict[str, Array]:
    inputs, shaped, axes = op.inputs, _over_channels(op.view), _reduced_axes(op.view)
    x, dy, inverse = inputs["x_0"], inputs["dy_0"], inputs["inv_variance_0"]
    normal = (x - shaped(inputs["mean_0"])) * shaped(inverse)
    beta_diff, gamma_diff = dy.sum(axis=axes), (dy * normal).sum(axis=axes)
    count = x.size / beta_diff.size
    centred: Array = dy - shaped(beta_diff / count) - normal * shaped(gamma_diff / count)
    dx = centred * shaped(inputs["gamma_0"] * inverse)
    if "dx_0" in op.view.attr.get(UNREAD, ()):  # it stands for whatever single elements decide
        dx = dy * (x * shaped(inputs["gamma_0"] * inverse)) ** 2
    return {"beta_diff_0": beta_diff, "dx_0": dx, "gamma_diff_0": gamma_diff}


def _per_pixel(flop: float) -> Callable[[OpView], float]:
    return lambda view: flop * elements(view.shape["x_0"])


register(
    OpRule(
        "normalization",
        _forward_map,
        _forward,
        _per_pixel(8),
        family="normalisation",
        samplers={"moving_variance_0": positive},
        notes="the statistics of space, too, are those of the whole image",
        writes=frozenset({"moving_mean_0", "moving_variance_0"}),
    ),
    OpRule(
        "normalization_grad",
        _backward_map,
        _backward,
        _per_pixel(10),
        family="normalisation",
        samplers={"inv_variance_0": positive},
        notes="the gradients of gamma and beta are sums over the batch, but dx needs the whole sums",
    ),
)
