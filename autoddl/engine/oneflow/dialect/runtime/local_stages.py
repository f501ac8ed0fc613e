"""A script over shares with stages: as staged_model, with shards of its stage's tensors on each rank."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import oneflow as flow

from autoddl.engine.oneflow.dialect.runtime.local_model import (
    DEVICE,
    TURN,
    B,
    P,
    as_local,
    as_whole,
    dual,
    first_turn,
    own,
)
from autoddl.engine.oneflow.dialect.runtime.staged_model import (
    ARGUMENTS,
    FORWARD,
    MICRO_BATCHES,
    RESULTS,
    STAGE,
    move,
)

RANKS: list[Any] = [[0]]
UNITS = [[(1,)]]
PARAMETERS: dict[str, Any] = {}
BUFFERS: dict[str, Any] = {}
INPUTS: dict[str, Any] = {}
TRANSFERS: list[Any] = []
RECOMPUTED: list[int] = []


def boxes(shape, state, stage):
    """Return what each rank of a stage has of a tensor, as (start, stop) for each dim."""
    found = []
    for place in np.ndindex(np.shape(RANKS[stage])):
        box = [(0, size) for size in shape]
        for entry, index, units in zip(state, place, UNITS[stage], strict=True):
            if entry not in (B, P):
                start, stop = box[entry]
                unit = (stop - start) // sum(units)
                start += unit * sum(units[:index])
                box[entry] = start, start + unit * units[index]
        found.append(tuple(box))
    return found


def arriving(shape, dtype, state):
    """Return a tensor for what is to arrive of one in a state."""
    sizes = []
    for dim, length in enumerate(shape):
        sizes.append(own(length, *(axis for axis, entry in enumerate(state) if entry == dim)))
    return flow.zeros(tuple(sizes), dtype=dtype, device=DEVICE)


def exchange(kind, source, target, values, gradients):
    """Send or receive all that goes from one stage to another in one direction for a micro-batch."""
    for name, maker, reader, shape, dtype, sent, arrived in TRANSFERS:
        if kind == "F" and (maker, reader) == (source, target):
            if target == STAGE:
                values[name] = arriving(shape, dtype, arrived)
            move(name, source, target, values[name].detach())
            if target == STAGE:
                values[name].requires_grad = dtype.is_floating_point
        elif kind == "B" and (reader, maker) == (source, target) and dtype.is_floating_point:
            if source == STAGE:
                gradient = values.pop(name)
                if gradient is None:  # the loss does not depend on it
                    gradient = arriving(shape, dtype, dual(arrived))
                move(name, source, target, gradient.detach())
            else:
                gradient = arriving(shape, dtype, dual(sent))
                move(name, source, target, gradient)
                before = gradients.get(name)
                gradients[name] = gradient if before is None else before + gradient


def compute(params, values):
    """Compute this stage on one micro-batch: `values` get its results, and the end of the turns."""
    first_turn()
    results = FORWARD[STAGE](params, *(values[name] for name in ARGUMENTS[STAGE]))
    results = (results,) if isinstance(results, flow.Tensor) else results
    values.update(zip(RESULTS[STAGE], results, strict=True))
    values[""] = TURN[0]


def run_forward(params, values):
    """Compute this stage on one micro-batch, without keeping what backward computes again."""
    with flow.set_grad_enabled(STAGE not in RECOMPUTED):
        compute(params, values)


def run_backward(params, values, gradients):
    """Go back through this stage from its loss, or from the gradients of its results."""
    if STAGE in RECOMPUTED:
        compute(params, values)
    turn = values[""]
    if "loss" in values:
        (values["loss"] / MICRO_BATCHES + 0 * turn.sum()).backward()
    else:
        trained = [name for name in gradients if values[name].requires_grad]
        ends = [gradients[name] for name in trained]
        starts = [values[name] for name in trained]
        flow.autograd.backward([*starts, turn], [*ends, flow.zeros_like(turn)])


def load_parameters(path):
    """Return this rank's shards of its stage's tensors of the single-device model's state dict."""
    stored, params = flow.load(path), {}
    for name, (stage, state) in {**PARAMETERS, **BUFFERS}.items():
        if name not in stored:
            raise SystemExit(f"{path}: no {name} in it; save the planned model's state_dict()")
        if stage == STAGE:
            # A copy: of a view views would begin elsewhere.
            shard = as_local(stored[name].numpy(), state).clone()
            params[name] = flow.nn.Parameter(shard) if name in PARAMETERS else shard
    return params


def save_checkpoint(path, params, loaded=None):
    """Write a state dict that the single-device model and this script can load. All ranks call this.

    `loaded` is the state dict that was loaded: what else it holds is saved again.
    """
    state = dict(loaded or {})
    for name, (stage, held) in {**PARAMETERS, **BUFFERS}.items():
        first = int(np.ravel(RANKS[stage])[0])  # the rank that sends what its stage has
        if stage == STAGE:
            whole = flow.tensor(as_whole(params[name], held))
        if flow.env.get_rank() == first != 0:
            flow.comm.send(whole, 0)
        elif flow.env.get_rank() == 0:
            state[name] = whole if first == 0 else flow.comm.recv(first)
    if flow.env.get_rank() == 0:
        flow.save(state, path)


def batches(path):
    """Yield lists of micro-batches: the arrays of an .npz file cut up, or random numbers.

    Each is a dict of this rank's parts of its stage's inputs.
    """
    arrays = dict(np.load(path)) if path else {}
    for step in itertools.count():
        rng, micro_batches = np.random.default_rng(step), []
        for n in range(step * MICRO_BATCHES, (step + 1) * MICRO_BATCHES):
            values = {}
            for name, (stage, shape, dtype, state, below) in INPUTS.items():
                if path:
                    first = n % max(len(arrays[name]) // shape[0], 1) * shape[0]
                    array = arrays[name][first : first + shape[0]]
                else:
                    array = rng.integers(0, below, shape) if below else rng.normal(size=shape)
                if stage == STAGE:
                    values[name] = as_local(array.astype(dtype), state)
            micro_batches.append(values)
        yield micro_batches
