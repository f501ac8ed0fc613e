"""Layers over shares whose result depends on more than this rank's shard: on a mask, on all samples."""

from __future__ import annotations

import oneflow as flow

from autoddl.engine.oneflow.dialect.runtime.local_model import (
    DEVICE,
    PLACE,
    SHARES,
    B,
    P,
    boxed,
    dual,
    moved,
)


def dropped(x, rate, shape, state):
    """Return x without what a mask of its whole shape drops, which all ranks draw alike."""
    mask = flow.nn.functional.dropout(flow.ones(*shape, dtype=x.dtype, device=DEVICE), p=rate)
    return x * moved(mask, [B] * len(state), dual(state))


def whole_batch_norm(x, running_mean, running_var, weight, bias, momentum, eps, *axes):
    """Return x (N, C, …), whose samples some axes cut, normalised by each channel's mean and variance.

    Ranks have unlike numbers of samples: what goes between them are sums.
    """
    summands = [P if axis in axes else B for axis in range(len(PLACE))]
    dims = [dim for dim in range(x.ndim) if dim != 1]
    view = [-1 if dim == 1 else 1 for dim in range(x.ndim)]
    count = x.numel() // x.shape[1]
    for axis in axes:
        count = count // SHARES[axis][PLACE[axis]] * sum(SHARES[axis])

    def mean_of(values):
        return boxed(values.sum(dim=dims), summands, [B] * len(PLACE), late=axes) / count

    mean = mean_of(x)
    off = x - mean.reshape(view)
    variance = mean_of(off * off)
    if running_mean is not None:
        with flow.no_grad():
            running_mean.mul_(1 - momentum).add_(mean * momentum)
            running_var.mul_(1 - momentum).add_(variance * (momentum * count / max(count - 1, 1)))
    scale = (variance + eps).rsqrt() * weight
    return off * scale.reshape(view) + bias.reshape(view)
