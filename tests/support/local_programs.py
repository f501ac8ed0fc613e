"""Distributed programs of small models, and the tensors that one device makes of the same values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.sbp.local_program.instructions import LocalProgram
from autoddl.sbp.local_program.local_lowering import lower
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle.simulated_program import execute
from autoddl.sbp.numpy_oracle.simulated_tensors import Array, assemble, close, shard
from autoddl.sbp.program import Program
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.baselines import BASELINES
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer
from tests.support.simulated import run_program
from tests.support.zoo import ZOO

# What the engine's optimizer ops have, and those of programs that are made by hand lack.
_UPDATES = {
    "amsgrad": False, "beta1": 0.9, "beta2": 0.999, "dampening": 0.0, "epsilon": 1e-8, "l1": 0.0,
    "l2": 0.0, "maximize": False, "nesterov": False, "scale": 1.0, "weight_decay": 0.1,
}  # fmt: skip
BY_HAND = {**ZOO, "gpt": partial(transformer, length=4, width=16, heads=2, vocabulary=16)}
SMALL = "mlp of 8"  # features, in each layer
CAPTURED = ("vgg13", "resnet18", "dlrm")
MODELS = (*BY_HAND, *(pytest.param(name, marks=pytest.mark.oneflow) for name in CAPTURED))
MESHES = ("2", "4", "2x2", "2:3/1", "2:3/1x2", "2x2:3/1", "3:2/1/1")


@cache
def program_of(name: str) -> Program:
    """Return a training step, made by hand or captured from a model of the zoo at its toy size."""
    if name in BY_HAND or name == SMALL:
        return updatable(BY_HAND[name]() if name in BY_HAND else mlp(8, (8, 8, 8), act="gelu"))
    import autoddl
    from experiments import models

    graph, inputs = models.build(name)
    return autoddl.capture(graph, *inputs)


def updatable(program: Program) -> Program:
    """Return a program made by hand with what references of updates read."""
    ops = (
        replace(op, attrs=tuple(sorted({**_UPDATES, **op.attr}.items()))) if op.is_update else op
        for op in program.ops
    )
    return replace(program, ops=tuple(ops))


@cache
def problem_of(name: str, mesh: str) -> CostNetwork:
    """Return the problem of all that is right on a mesh."""
    return build(program_of(name), Mesh.parse(mesh), cluster(), engine=ONEFLOW.whole_space())


def local_program(name: str, mesh: str, seed: int) -> LocalProgram:
    """Return what a random assignment is lowered to; for seed 0 data parallelism."""
    problem = problem_of(name, mesh)
    point = random_assignment(problem, seed) if seed else BASELINES["data parallel"](problem)
    assert point is not None
    return lower(assigned_layout(problem, point), Mesh.parse(mesh))


def whole_values(program: Program, rng: np.random.Generator) -> dict[str, Array]:
    """Draw all that no op makes; states of optimizers, rates and statistics are positive."""
    found: dict[str, Array] = {}
    for tensor in program.tensors:
        if tensor.name in program.producer:
            continue
        if "int" in tensor.dtype or tensor.dtype == "bool":
            found[tensor.name] = rng.integers(0, 2, tensor.shape)
        elif tensor.role in ("state", "system", "buffer"):
            found[tensor.name] = rng.uniform(0.5, 1.0, tensor.shape)
        else:
            found[tensor.name] = rng.normal(0.1, 0.5, tensor.shape)
    return found


def unlike(local: LocalProgram, values: Mapping[str, Array]) -> list[str]:
    """Return what simulated ranks hold in the end that is not what one device has."""
    rng, cuts, tensor = np.random.default_rng(1), local.mesh.cuts, local.program.tensor
    begun = [each.property for each in local.given]
    found = execute(local, {name: shard(values[name], s, cuts, rng) for name, s in begun})
    expected = run_program(local.program, values, updates=True)
    assert {held.tensor for held in found} == set(expected)
    kept = {each.property for each in local.kept}
    updated = {held.tensor for held in kept} - {*local.program.outputs}
    checked = [held for held in found if held in kept or held.tensor not in updated]
    return [
        str(held)
        for held in checked  # in other states what is updated is as it was before
        if not close(
            assemble(found[held], held.state, cuts, tensor[held.tensor].shape),
            expected[held.tensor],
        )
    ]
