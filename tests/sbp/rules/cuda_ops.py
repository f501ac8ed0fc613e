"""Run references of ops that only graphs on GPUs have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoddl.sbp.numpy_oracle.simulated_ops import run_op, sample_inputs
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.state import broadcast
from experiments.rule_cases.cuda_cases import CASES

Arrays = dict[str, np.ndarray]


def run(view: OpView, inputs: Arrays) -> Arrays:
    """Run the reference on one device."""
    whole = dict.fromkeys(view.inputs + view.outputs, broadcast(1))
    results = run_op(view, whole, (1,), {name: [inputs[name]] for name in view.inputs})
    return {name: array for name, (array,) in results.items()}


def drawn(view: OpView) -> tuple[Arrays, Arrays]:
    """Draw inputs and run the reference on them."""
    inputs = sample_inputs(view, np.random.default_rng(5))
    return inputs, run(view, inputs)


def first(op_type: str, position: int = 0) -> OpView:
    """Return the first (or a later) case of an op type."""
    return [view for view in CASES if view.type == op_type][position]


def without(view: OpView, *operands: str) -> OpView:
    """Leave out optional inputs."""
    inputs = tuple(name for name in view.inputs if name not in operands)
    return replace(view, inputs=inputs)
