"""Layers over shares whose result depends on more than this rank's shard: on a mask, on all samples."""

from __future__ import annotations

import oneflow as flow

from autoddl.engine.oneflow.dialect.runtime.local_model import DEVICE, B, dual, moved


def dropped(x, rate, shape, state):
    """Return x without what a mask of its whole shape drops, which all ranks draw alike."""
    mask = flow.nn.functional.dropout(flow.ones(*shape, dtype=x.dtype, device=DEVICE), p=rate)
    return x * moved(mask, [B] * len(state), dual(state))
