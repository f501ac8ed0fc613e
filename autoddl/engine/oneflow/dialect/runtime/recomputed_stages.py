"""Passes of a script in which some stages keep no activations: backward computes them again."""

from __future__ import annotations

import oneflow as flow

from autoddl.engine.oneflow.dialect.runtime.staged_model import (
    ARGUMENTS,
    FORWARD,
    MICRO_BATCHES,
    RESULTS,
    STAGE,
)

RECOMPUTED = [0]


def compute(params, values):
    """Compute this stage on one micro-batch: `values` get its results."""
    results = FORWARD[STAGE](params, *(values[name] for name in ARGUMENTS[STAGE]))
    results = (results,) if isinstance(results, flow.Tensor) else results
    values.update(zip(RESULTS[STAGE], results, strict=True))


def run_forward(params, values):
    """Compute this stage on one micro-batch, without keeping what backward computes again."""
    with flow.set_grad_enabled(STAGE not in RECOMPUTED):
        compute(params, values)


def run_backward(params, values, gradients):
    """Go back through this stage from its loss, or from the gradients of its results."""
    if STAGE in RECOMPUTED:
        compute(params, values)
    if "loss" in values:
        (values["loss"] / MICRO_BATCHES).backward()
    else:
        trained = [name for name in gradients if values[name].requires_grad]
        flow.autograd.backward([values[n] for n in trained], [gradients[n] for n in trained])
