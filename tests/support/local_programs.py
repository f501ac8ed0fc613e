"""Distributed programs of small models, and the tensors that one device makes of the same values."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import pytest

from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.sbp.local_program.instructions import LocalProgram
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.network.cost_network import CostNetwork
from experiments.lib.oneflow_problems import build
from experiments.proofs.lowered_steps import lowered
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer
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
    return lowered(problem_of(name, mesh), Mesh.parse(mesh), seed)
