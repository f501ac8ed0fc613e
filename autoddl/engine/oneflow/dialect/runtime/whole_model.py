"""A script without stages: arrays to global tensors and back, steps, checkpoints, batches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import oneflow as flow

DEVICE = "cpu"
PLACEMENT = flow.placement(DEVICE, [0])
WHOLE = [flow.sbp.broadcast]
PARAMETERS: dict[str, Any] = {}
BUFFERS: dict[str, Any] = {}
INPUTS: dict[str, Any] = {}


def loss_of(params, *inputs):
    """Stand for the model's function."""
    return sum(inputs)


def update(params, optimizer):
    """Stand for the update of the plan's optimizer."""
    optimizer.step()
    optimizer.zero_grad()


def as_global(array, sbp):
    """Return an array that every rank has as a global tensor in a state."""
    tensor = flow.tensor(array, device=DEVICE)
    return tensor.to_global(placement=PLACEMENT, sbp=WHOLE).to_global(sbp=sbp)


def as_whole(tensor):
    """Return the whole of a global tensor as an array, on every rank."""
    return tensor.to_global(sbp=WHOLE).to_local().numpy().copy()


def train_step(params, optimizer, *inputs):
    """Run forward, backward and update on one batch of global tensors; return the loss."""
    loss = loss_of(params, *inputs)
    loss.backward()
    update(params, optimizer)
    return loss


def load_parameters(path):
    """Return the tensors of the single-device model's state dict, in their states.

    What else the file holds (counters of steps, say) stays as it is and is saved again.
    """
    stored = flow.load(path)
    missing = [name for name in {**PARAMETERS, **BUFFERS} if name not in stored]
    if missing:
        raise SystemExit(f"{path}: no {missing[0]} in it; save the planned model's state_dict()")
    params = dict(stored)
    for name, sbp in BUFFERS.items():
        params[name] = as_global(stored[name].numpy(), sbp)
    for name, sbp in PARAMETERS.items():
        params[name] = flow.nn.Parameter(as_global(stored[name].numpy(), sbp))
    return params


def save_checkpoint(path, params):
    """Write a state dict that the single-device model and this script can load."""
    state = {}
    for name, tensor in params.items():
        state[name] = flow.tensor(as_whole(tensor)) if tensor.is_global else tensor
    if flow.env.get_rank() == 0:
        flow.save(state, path)


def batches(path):
    """Yield batches of global tensors: the arrays of an .npz file cut up, or random numbers."""
    arrays = dict(np.load(path)) if path else {}
    for step in itertools.count():
        rng, batch = np.random.default_rng(step), []
        for name, (shape, dtype, sbp, below) in INPUTS.items():
            if path:
                size = shape[0]
                first = step % max(len(arrays[name]) // size, 1) * size
                array = arrays[name][first : first + size]
            else:
                array = rng.integers(0, below, shape) if below else rng.normal(size=shape)
            batch.append(as_global(array.astype(dtype), sbp))
        yield batch
