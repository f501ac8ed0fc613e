"""A step over shares that adds up the gradients of several micro-batches."""

from __future__ import annotations

from autoddl.engine.oneflow.dialect.runtime.local_model import backward, update

MICRO_BATCHES = 1


def train_step(params, optimizer, micro_batches):
    """Run forward and backward on each micro-batch, then the update; return the mean loss."""
    losses = [backward(params, inputs, 1 / MICRO_BATCHES) for inputs in micro_batches]
    update(params, optimizer)
    return sum(losses) / MICRO_BATCHES
