"""A step without stages that adds up the gradients of several micro-batches."""

from __future__ import annotations

from autoddl.engine.oneflow.dialect.runtime.whole_model import loss_of, update

MICRO_BATCHES = 1


def train_step(params, optimizer, micro_batches):
    """Run forward and backward on each micro-batch, then the update; return the mean loss."""
    losses = []
    for inputs in micro_batches:
        loss = loss_of(params, *inputs)
        (loss / MICRO_BATCHES).backward()
        losses.append(loss.detach())
    update(params, optimizer)
    return sum(losses) / MICRO_BATCHES
