"""A script with stages: their tasks in order, sends and receives between ranks, checkpoints, batches."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import numpy as np
import oneflow as flow

from autoddl.codegen.transfer_boxes import transfer_boxes

B, P, S = flow.sbp.broadcast, flow.sbp.partial_sum, flow.sbp.split
DEVICE = "cpu"
STAGES = 1
MICRO_BATCHES = 1
RANKS: list[Any] = [[0]]
PLACEMENTS = [flow.placement(DEVICE, ranks) for ranks in RANKS]
STAGE = 0
PARAMETERS: dict[str, Any] = {}
BUFFERS: dict[str, Any] = {}
INPUTS: dict[str, Any] = {}
TRANSFERS: list[Any] = []
ARGUMENTS: list[list[str]] = [[]]
RESULTS = [["loss"]]
ROUTES: dict[Any, Any] = {}
FORWARD = [lambda params: flow.zeros(())]
ORDER: list[list[Any]] = [[]]
DONE: list[str] = []


def update(params, optimizer):
    """Stand for the update of the plan's optimizer."""
    optimizer.step()
    optimizer.zero_grad()


def as_global(array, sbp, stage):
    """Return an array that every rank has as a global tensor on a stage. All ranks must call this."""
    tensor = flow.tensor(array, device=DEVICE)
    return tensor.to_global(placement=PLACEMENTS[stage], sbp=[B] * len(sbp)).to_global(sbp=sbp)


def as_whole(tensor):
    """Return the whole of a global tensor as an array, on the ranks of its stage."""
    return tensor.to_global(sbp=[B] * len(tensor.sbp)).to_local().numpy().copy()


def whole_where_partial(sbp):
    """Return the state of the gradient of a tensor in a state: that of a summand is the whole."""
    return [B if each == P else each for each in sbp]


def boxes(shape, sbp, stage):
    """Return what each rank of a stage has of a tensor, as (start, stop) for each dim."""
    found, ranks = [], RANKS[stage]
    for place in np.ndindex(np.shape(ranks)):
        box = [(0, size) for size in shape]
        for each, index, count in zip(sbp, place, np.shape(ranks), strict=True):
            for dim, (start, stop) in enumerate(box):
                if each == S(dim):
                    size = (stop - start) // count
                    box[dim] = start + index * size, start + (index + 1) * size
        found.append(tuple(box))
    return found


def inside(box, whole):
    """Return where a box is in another one that holds it, as slices."""
    return tuple(
        slice(start - first, stop - first)
        for (start, stop), (first, _) in zip(box, whole, strict=True)
    )


def routes():
    """Return by tensor and stages which rank sends which part of its shard to where in which other's."""
    found = {}
    for name, maker, reader, shape, _, sent, arrived in TRANSFERS:
        forward = ((maker, boxes(shape, sent, maker)), (reader, boxes(shape, arrived, reader)))
        for (source, has), (target, wants) in (forward, forward[::-1]):
            from_ranks, to_ranks = (np.ravel(RANKS[stage]).tolist() for stage in (source, target))
            found[name, source, target] = [
                (from_ranks[a], to_ranks[b], inside(box, has[a]), inside(box, wants[b]))
                for a, b, box in transfer_boxes(has, wants)
            ]
    return found


def move(name, source, target, local):
    """Send parts of this rank's shard to another stage, or fill it with what comes from there."""
    rank = flow.env.get_rank()
    for from_rank, to_rank, sent, filled in ROUTES[name, source, target]:
        if rank == from_rank:
            part = local[sent] if sent else local
            flow.comm.send(part.contiguous(), to_rank, send_meta=False)
        elif rank == to_rank:
            shape = tuple(each.stop - each.start for each in filled)
            whole = local if shape == tuple(local.shape) else None
            part = flow.comm.recv(from_rank, shape, local.dtype, local.device, out=whole)
            if whole is None:
                local[filled] = part


def exchange(kind, source, target, values, gradients):
    """Send or receive all that goes from one stage to another in one direction for a micro-batch."""
    for name, maker, reader, shape, dtype, sent, arrived in TRANSFERS:
        facts = {"dtype": dtype, "placement": PLACEMENTS[STAGE]}
        if kind == "F" and (maker, reader) == (source, target):
            if target == STAGE:
                values[name] = flow.empty(shape, sbp=arrived, **facts)
            move(name, source, target, values[name].detach().to_local())
            if target == STAGE:
                values[name].requires_grad = dtype.is_floating_point
        elif kind == "B" and (reader, maker) == (source, target) and dtype.is_floating_point:
            if source == STAGE:
                gradient, sbp = values.pop(name), whole_where_partial(arrived)
                if gradient is None:  # the loss does not depend on it
                    gradient = flow.zeros(shape, sbp=sbp, **facts)
                move(name, source, target, gradient.to_global(sbp=sbp).detach().to_local())
            else:
                gradient = flow.empty(shape, sbp=whole_where_partial(sent), **facts)
                move(name, source, target, gradient.to_local())
                before = gradients.get(name)
                gradients[name] = gradient if before is None else before + gradient


def actions(stage, text):
    """Return what a stage does in order, of its tasks as text: "F0 F0>1 B0<1 B0"."""
    found = []
    for task in text.split():
        what, sign, other = task.partition(">" if ">" in task else "<")
        ends = {"": [], ">": [stage, int(other or 0)], "<": [int(other or 0), stage]}[sign]
        found.append((what[0], int(what[1:]), *ends))
    return found


def noted(task, n="", source=STAGE, target=STAGE):
    """Note in DONE what this stage has done: "F0", "F0>1" (sent to stage 1), "B0<1", "LA0", "AG"."""
    if source != target:
        n = f"{n}>{target}" if source == STAGE else f"{n}<{source}"
    DONE.append(f"{task}{n}")


def run_forward(params, values):
    """Compute this stage on one micro-batch: `values` get its results."""
    results = FORWARD[STAGE](params, *(values[name] for name in ARGUMENTS[STAGE]))
    results = (results,) if isinstance(results, flow.Tensor) else results
    values.update(zip(RESULTS[STAGE], results, strict=True))


def run_backward(params, values, gradients):
    """Go back through this stage from its loss, or from the gradients of its results."""
    if "loss" in values:
        (values["loss"] / MICRO_BATCHES).backward()
    else:
        trained = [name for name in gradients if values[name].requires_grad]
        flow.autograd.backward([values[n] for n in trained], [gradients[n] for n in trained])


def train_step(params, optimizer, micro_batches):
    """Run all micro-batches through the stages and update; return the mean loss on the last stage.

    `micro_batches` are dicts of this stage's inputs. The gradient is the mean over micro-batches.
    """
    DONE.clear()
    losses, gradients = [], {}
    values = {n: dict(inputs) for n, inputs in enumerate(micro_batches)}
    for kind, n, *message in ORDER[STAGE]:
        if message:
            if DEVICE == "cpu":  # else it overtakes passes, and later ones wait behind it
                flow._oneflow_internal.eager.Sync()
            exchange(kind, *message, values[n], gradients.setdefault(n, {}))
        elif kind == "F":
            run_forward(params, values[n])
            losses += [values[n]["loss"].detach()] if "loss" in values[n] else []
        else:
            run_backward(params, values[n], gradients.pop(n, {}))
            values[n] = {name: values[n][name].grad for name in ARGUMENTS[STAGE]}
        noted(kind, n, *message)
        if kind == "B" and not message and MICRO_BATCHES > 1:
            noted("LA", n)  # autograd has added the gradients to those of other micro-batches
    update(params, optimizer)
    noted("AG")
    logging.debug("stage %d did %s", STAGE, " ".join(DONE))
    return sum(losses) / MICRO_BATCHES if losses else None


def load_parameters(path):
    """Return this stage's tensors of the single-device model's state dict, in their states.

    All ranks must call this: each stage's tensors are made with the help of all.
    """
    stored, params = flow.load(path), {}
    for name, (stage, sbp) in {**PARAMETERS, **BUFFERS}.items():
        if name not in stored:
            raise SystemExit(f"{path}: no {name} in it; save the planned model's state_dict()")
        tensor = as_global(stored[name].numpy(), sbp, stage)
        if stage == STAGE:
            params[name] = flow.nn.Parameter(tensor) if name in PARAMETERS else tensor
    return params


def save_checkpoint(path, params, loaded=None):
    """Write a state dict that the single-device model and this script can load. All ranks call this.

    `loaded` is the state dict that was loaded: what else it holds is saved again.
    """
    state = dict(loaded or {})
    for name, (stage, _) in {**PARAMETERS, **BUFFERS}.items():
        first = int(np.ravel(RANKS[stage])[0])  # the rank that sends what its stage has
        if stage == STAGE:
            whole = flow.tensor(as_whole(params[name]))
        if flow.env.get_rank() == first != 0:
            flow.comm.send(whole, 0)
        elif flow.env.get_rank() == 0:
            state[name] = whole if first == 0 else flow.comm.recv(first)
    if flow.env.get_rank() == 0:
        flow.save(state, path)


def batches(path):
    """Yield lists of micro-batches: the arrays of an .npz file cut up, or random numbers.

    Each is a dict of this stage's inputs. All ranks make the inputs of all stages together.
    """
    arrays = dict(np.load(path)) if path else {}
    for step in itertools.count():
        rng, micro_batches = np.random.default_rng(step), []
        for n in range(step * MICRO_BATCHES, (step + 1) * MICRO_BATCHES):
            values = {}
            for name, (stage, shape, dtype, sbp, below) in INPUTS.items():
                if path:
                    first = n % max(len(arrays[name]) // shape[0], 1) * shape[0]
                    array = arrays[name][first : first + shape[0]]
                else:
                    array = rng.integers(0, below, shape) if below else rng.normal(size=shape)
                tensor = as_global(array.astype(dtype), sbp, stage)
                if stage == STAGE:
                    values[name] = tensor
            micro_batches.append(values)
        yield micro_batches
