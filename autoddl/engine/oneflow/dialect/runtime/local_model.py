"""A script over shares: each rank holds its shards as local tensors and says itself what goes where.

Global tensors cut evenly, so what goes between ranks is padded to the largest shard, and goes over a
global tensor of one axis, of the ranks that take part; or a gather is *grouped*, a broadcast from each
place of just what it has. All of these ranks call their collectives in one order.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import oneflow as flow

DEVICE = "cpu"
RANKS: list[Any] = [0]
SHARES: list[tuple[int, ...]] = [(1,)]
PLACE: tuple[int, ...] = (0,)
GROUPS = [[[0]]]
B, P = "B", "P"
LOSS: list[Any] = [B]
TURN: list[Any] = []
PARAMETERS: dict[str, Any] = {}
BUFFERS: dict[str, Any] = {}
INPUTS: dict[str, Any] = {}


def groups(ranks):
    """Return for each axis the groups of ranks that differ in it alone."""
    ranks = np.array(ranks)
    rows = [np.moveaxis(ranks, axis, -1) for axis in range(ranks.ndim)]
    return [row.reshape(-1, row.shape[-1]).tolist() for row in rows]


def own(length, *axes):
    """Return how much this rank has of a length that some axes cut."""
    for axis in axes:
        length = length // sum(SHARES[axis]) * SHARES[axis][PLACE[axis]]
    return length


def lengths(length, axis):
    """Return how much each place of an axis has of a length."""
    return [length // sum(SHARES[axis]) * share for share in SHARES[axis]]


def padded(tensor, dim, length):
    """Return a tensor with zeros behind it, up to a length of one dim."""
    missing = length - tensor.shape[dim]
    if missing == 0:
        return tensor
    shape = [*tensor.shape]
    shape[dim] = missing
    return flow.cat([tensor, flow.zeros(*shape, dtype=tensor.dtype, device=DEVICE)], dim=dim)


def collective(tensor, axis, before, after):
    """Return what a collective over an axis makes of local tensors of one shape."""
    ranks = next(group for group in GROUPS[axis] if flow.env.get_rank() in group)
    shape = [*tensor.shape]
    for dim in range(tensor.ndim):
        if before == flow.sbp.split(dim):
            shape[dim] *= len(ranks)
    # Filled, not made of local tensors: that all ranks of the job would have to call.
    placement = flow.placement(DEVICE, ranks)
    sent = flow.empty(tuple(shape), dtype=tensor.dtype, placement=placement, sbp=[before])
    sent.to_local().copy_(tensor)
    return sent.to_global(sbp=[after]).to_local()


def summed(tensor, axis):
    """Return the sum of what the places of an axis have."""
    return collective(tensor, axis, flow.sbp.partial_sum, flow.sbp.broadcast)


def announced(tensor, axis, dim, each):
    """Return the shards of all places of an axis, so long each; each place broadcasts its own."""
    ranks = next(group for group in GROUPS[axis] if flow.env.get_rank() in group)
    shape, found, whole = [*tensor.shape], [], [flow.sbp.broadcast]
    for place, length in enumerate(each):
        shape[dim] = length
        root = flow.placement(DEVICE, ranks[place : place + 1])
        sent = flow.empty(tuple(shape), dtype=tensor.dtype, placement=root, sbp=whole)
        if place == PLACE[axis]:
            sent.to_local().copy_(tensor)
        made = sent.to_global(placement=flow.placement(DEVICE, ranks), sbp=whole)
        found.append(made.to_local())
    return found


def gathered(tensor, axis, dim, grouped=False):
    """Return all shards of an axis side by side."""
    unit = tensor.shape[dim] // SHARES[axis][PLACE[axis]]
    each = [unit * share for share in SHARES[axis]]
    if grouped:
        return flow.cat(announced(tensor, axis, dim, each), dim=dim)
    most = max(each)
    whole = collective(padded(tensor, dim, most), axis, flow.sbp.split(dim), flow.sbp.broadcast)
    parts = [whole.narrow(dim, place * most, length) for place, length in enumerate(each)]
    return flow.cat(parts, dim=dim)


def sliced(tensor, axis, dim):
    """Return this rank's shard of what all places of an axis have."""
    each, place = lengths(tensor.shape[dim], axis), PLACE[axis]
    return tensor.narrow(dim, sum(each[:place]), each[place])


def scattered(tensor, axis, dim):
    """Return this rank's shard of the sum of what the places of an axis have."""
    each = lengths(tensor.shape[dim], axis)
    parts = [padded(part, dim, max(each)) for part in flow.split(tensor, each, dim=dim)]
    split = flow.sbp.split(dim)
    mine = collective(flow.cat(parts, dim=dim), axis, flow.sbp.partial_sum, split)
    return mine.narrow(dim, 0, each[PLACE[axis]])


def exchanged(tensor, axis, dim, other):
    """Return the shard along another dim, of which each place sends the others their pieces."""
    unit = tensor.shape[dim] // SHARES[axis][PLACE[axis]]
    held, wanted = [unit * share for share in SHARES[axis]], lengths(tensor.shape[other], axis)
    parts = [padded(part, other, max(wanted)) for part in flow.split(tensor, wanted, dim=other)]
    sent = padded(flow.stack(parts, dim=0), dim + 1, max(held))
    split = flow.sbp.split
    came = collective(sent, axis, split(dim + 1), split(0)).squeeze(0)
    came = came.narrow(other, 0, wanted[PLACE[axis]])
    parts = [came.narrow(dim, place * max(held), length) for place, length in enumerate(held)]
    return flow.cat(parts, dim=dim)


def stretched(tensor, axis, dim):
    """Return this rank's shard with zeros where the others have theirs."""
    unit = tensor.shape[dim] // SHARES[axis][PLACE[axis]]
    each, place = [unit * share for share in SHARES[axis]], PLACE[axis]
    shape = [*tensor.shape]
    parts = []
    for other, length in enumerate(each):
        shape[dim] = length
        zeros = flow.zeros(*shape, dtype=tensor.dtype, device=DEVICE)
        parts.append(tensor if other == place else zeros)
    return flow.cat(parts, dim=dim)


def first_only(tensor, axis):
    """Return the value on the first place of an axis, and zeros on the others."""
    # A parameter that is the result of an autograd function itself would get no gradient.
    return tensor.clone() if PLACE[axis] == 0 else flow.zeros_like(tensor)


def dealt(tensor, axis, dim, stride):
    """Return a whole tensor with what each place has in turns of a stride side by side."""
    turns = (*tensor.shape[:dim], -1, len(SHARES[axis]), stride, *tensor.shape[dim + 1 :])
    return tensor.reshape(*turns).transpose(dim, dim + 1).reshape(*tensor.shape)


def collected(tensor, axis, dim, stride):
    """Return what `dealt` was given: the elements in their order again."""
    places = (*tensor.shape[:dim], len(SHARES[axis]), -1, stride, *tensor.shape[dim + 1 :])
    return tensor.reshape(*places).transpose(dim, dim + 1).reshape(*tensor.shape)


def along(tensor, axis, before, after, grouped=False):
    """Return a tensor whose entry of one axis changes: B, P, the dim that it cuts, or (dim, stride).

    A cut with a stride is one without of a tensor whose elements lie in another order.
    """
    if isinstance(after, tuple):
        if before not in (B, P):
            tensor, before = along(tensor, axis, before, B, grouped), B
        return along(dealt(tensor, axis, *after), axis, before, after[0])
    if isinstance(before, tuple):
        if after not in (B, P):
            return along(along(tensor, axis, before, B, grouped), axis, B, after)
        return collected(along(tensor, axis, before[0], after, grouped), axis, *before)
    if before == P:
        return summed(tensor, axis) if after == B else scattered(tensor, axis, after)
    if before == B:
        return first_only(tensor, axis) if after == P else sliced(tensor, axis, after)
    if after == B:
        return gathered(tensor, axis, before, grouped)
    if after == P:
        return stretched(tensor, axis, before)
    return exchanged(tensor, axis, before, after)


def dual(state):
    """Return the state of a gradient, by axis: of summands each place has the whole one."""
    return [B if entry == P else entry for entry in state]


def moved(tensor, before, after, grouped=False):
    """Return a tensor in another state, axis by axis; gathers are padded, or `grouped`.

    A dim is cut from the outermost axis inwards, and put together outwards; where axes do both at once
    all has to be whole in between.
    """
    axes = [axis for axis, entry in enumerate(before) if entry != after[axis]]
    joins = [axis for axis in axes if before[axis] not in (B, P)]
    cuts = [axis for axis in axes if after[axis] not in (B, P)]
    if joins and cuts and len(axes) > 1:
        whole = [B if axis in axes else entry for axis, entry in enumerate(before)]
        return moved(moved(tensor, before, whole, grouped), whole, after)
    for axis in reversed(axes) if joins else axes:
        tensor = along(tensor, axis, before[axis], after[axis], grouped)
    return tensor


def in_turn(tensor, forward, backward):
    """Return forward(tensor), through which a gradient goes back by `backward`, in turn.

    OneFlow runs what is independent in the backward pass in any order, not the same on every rank, but
    all ranks have to call collectives in one order. So each such function also hands on a tensor that
    the next one reads: then each has to wait in the backward pass for the one behind it.
    """
    if not tensor.requires_grad:
        return forward(tensor)

    class InTurn(flow.autograd.Function):
        @staticmethod
        def forward(ctx, x, turn):
            return forward(x), turn.clone()

        @staticmethod
        def backward(ctx, gradient, turn):
            return backward(gradient), turn

    made, TURN[0] = InTurn.apply(tensor, TURN[0])
    return made


def boxed(tensor, before, after, late=(), grouped=False):
    """Return a tensor in another state; its gradient goes back from the dual of that state.

    Over the axes that are `late` all places have summands of it. Where one of both is a gather it may be
    `grouped`; a gradient of what was gathered is a slice, or the padded scatter of a sum.
    """
    back = [P if axis in late else entry for axis, entry in enumerate(dual(after))]
    return in_turn(
        tensor,
        lambda x: moved(x, before, after, grouped),
        lambda x: moved(x, back, dual(before), grouped),
    )


def summed_back(tensor, *axes):
    """Return a tensor that every place of some axes reads; its gradients are added up over these."""

    def total(gradient):
        for axis in axes:
            gradient = summed(gradient, axis)
        return gradient

    return in_turn(tensor, lambda x: x.clone(), total)


def as_local(array, state):
    """Return this rank's shard of an array that every rank has."""
    return moved(flow.tensor(array, device=DEVICE), [B] * len(state), state)


def as_whole(tensor, state=None):
    """Return the whole of a tensor that is in a state, of the loss by default, as an array."""
    state = LOSS if state is None else state
    return moved(tensor.detach(), state, [B] * len(state)).numpy().copy()


def clip_gradients(params, optimizer):
    """Scale each group's gradients down to its largest norm; what several places have counts once."""
    states = {hash(params[name]): state for name, state in PARAMETERS.items()}
    for group in optimizer.param_groups:
        if not group._enable_clip_grad:
            continue
        order, norms = float(group["clip_grad_norm_type"]), []
        trained = [parameter for parameter in group.parameters if parameter.grad is not None]
        for parameter in trained:
            places = zip(states[hash(parameter)], PLACE, strict=True)
            counted = np.isinf(order) or all(entry != B or place == 0 for entry, place in places)
            norm = flow.linalg.vector_norm(parameter.grad.detach(), order)
            norms.append(norm if counted else flow.zeros_like(norm))
        norm = flow.linalg.vector_norm(flow.stack(norms), order)
        for axis in range(len(PLACE)):
            each = collective(norm.reshape(1), axis, flow.sbp.split(0), flow.sbp.broadcast)
            norm = flow.linalg.vector_norm(each, order)
        factor = (group["clip_grad_max_norm"] / (norm + 1e-6)).clamp(max=1.0)
        for parameter in trained:
            parameter.grad.detach().mul_(factor)


def loss_of(params, *inputs):
    """Stand for the model's function."""
    return sum(inputs)


def update(params, optimizer):
    """Stand for the update of the plan's optimizer."""
    optimizer.step()
    optimizer.zero_grad()


def first_turn():
    """Begin the chain of functions that wait for each other in the backward pass."""
    TURN[:] = [flow.zeros(1, device=DEVICE, requires_grad=True)]


def backward(params, inputs, share=1.0):
    """Run forward and backward on this rank's part of a batch; return the loss, whose share counts."""
    first_turn()
    loss = loss_of(params, *inputs)
    (loss * share + 0 * TURN[0].sum()).backward()
    return loss.detach()


def train_step(params, optimizer, *inputs):
    """Run forward, backward and update on this rank's part of a batch; return the loss."""
    loss = backward(params, inputs)
    update(params, optimizer)
    return loss


def load_parameters(path):
    """Return this rank's shards of the single-device model's state dict.

    What else the file holds (counters of steps, say) stays as it is and is saved again.
    """
    stored = flow.load(path)
    missing = [name for name in {**PARAMETERS, **BUFFERS} if name not in stored]
    if missing:
        raise SystemExit(f"{path}: no {missing[0]} in it; save the planned model's state_dict()")
    params = dict(stored)
    for name, state in {**PARAMETERS, **BUFFERS}.items():
        # A copy: of a view views would begin elsewhere.
        shard = as_local(stored[name].numpy(), state).clone()
        params[name] = flow.nn.Parameter(shard) if name in PARAMETERS else shard
    return params


def save_checkpoint(path, params):
    """Write a state dict that the single-device model and this script can load."""
    states = {**PARAMETERS, **BUFFERS}
    whole = {
        name: flow.tensor(as_whole(tensor, states[name])) if name in states else tensor
        for name, tensor in params.items()
    }
    if flow.env.get_rank() == 0:
        flow.save(whole, path)


def batches(path):
    """Yield this rank's parts of batches: the arrays of an .npz file cut up, or random numbers."""
    arrays = dict(np.load(path)) if path else {}
    for step in itertools.count():
        rng, batch = np.random.default_rng(step), []
        for name, (shape, dtype, state, below) in INPUTS.items():
            if path:
                size = shape[0]
                first = step % max(len(arrays[name]) // size, 1) * size
                array = arrays[name][first : first + size]
            else:
                array = rng.integers(0, below, shape) if below else rng.normal(size=shape)
            batch.append(as_local(array.astype(dtype), state))
        yield batch
