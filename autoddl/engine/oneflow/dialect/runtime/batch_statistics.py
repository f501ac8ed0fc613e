"""BatchNorm whose batch the ranks have in parts, with the statistics of all of it."""

from __future__ import annotations

import oneflow as flow


def whole_batch_norm(x, running_mean, running_var, weight, bias, momentum, eps):
    """Return x (N, C, …) normalised by the mean and variance of each channel over all ranks."""
    whole = [flow.sbp.broadcast] * len(x.sbp)
    dims = [dim for dim in range(x.ndim) if dim != 1]
    view = [-1 if dim == 1 else 1 for dim in range(x.ndim)]
    mean = x.mean(dim=dims).to_global(sbp=whole, grad_sbp=whole)
    off = x - mean.reshape(view)
    variance = (off * off).mean(dim=dims).to_global(sbp=whole, grad_sbp=whole)
    if running_mean is not None:
        count = x.numel() // x.shape[1]
        with flow.no_grad():
            running_mean.mul_(1 - momentum).add_(mean * momentum)
            running_var.mul_(1 - momentum).add_(variance * (momentum * count / max(count - 1, 1)))
    scale = (variance + eps).rsqrt() * weight
    return off * scale.reshape(view) + bias.reshape(view)
