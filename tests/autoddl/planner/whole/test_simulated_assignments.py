"""Whole plans on simulated ranks: what every device computes, in any order of the axes, is right."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.sbp.layout import Layout
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle.simulated_ops import run_op
from autoddl.sbp.numpy_oracle.simulated_tensors import Array, assemble, close, shard
from autoddl.sbp.program import Program
from autoddl.sbp.rules.registry import OpView
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.objective import COMMUNICATION, space
from autoddl.search.result import SearchOptions
from autoddl.search.rivals.random_sampling import random_assignment
from autoddl.search.solvers import coordinate
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer
from tests.support.simulated import run_path, run_program


def whole_values(program: Program, rng: np.random.Generator) -> dict[str, Array]:
    """Draw inputs and parameters."""
    names = (*program.inputs, *(p.tensor for p in program.parameters))
    tensors = {name: program.tensor[name] for name in names}
    return {
        name: rng.integers(0, 2, t.shape) if t.dtype == "int64" else rng.normal(0.3, 1.0, t.shape)
        for name, t in tensors.items()
    }


def on_ranks(
    program: Program, layout: Layout, mesh: tuple[int, ...], values: Mapping[str, Array]
) -> dict[str, Array]:
    """Run forward and backward on every rank as a layout says; return whole tensors."""
    rng = np.random.default_rng(0)
    states = {**layout.inputs, **layout.variables}
    locals_ = {name: shard(array, states[name], mesh, rng) for name, array in values.items()}
    ways = {(r.tensor, *reader): r.path for r in layout.redistributions for reader in r.readers}
    for op in (op for op in program.ops if op.phase != "optimizer"):
        shapes, signature = program.shapes(op), layout.signatures[op.name]
        read = {}
        for operand, tensor in op.inputs:
            path = ways.get((tensor, op.name, operand), ())
            assert (path[-1] if path else states[tensor]) == signature[operand]
            read[operand] = run_path(locals_[tensor], states[tensor], path, shapes[operand], mesh)
        made = run_op(OpView.of(op, shapes), signature, mesh, read)
        for operand, tensor in op.outputs:
            locals_[tensor], states[tensor] = made[operand], signature[operand]
    return {
        name: assemble(parts, states[name], mesh, program.tensor[name].shape)
        for name, parts in locals_.items()
    }


def check(p: CostNetwork, assignment: tuple[int, ...]) -> None:
    values = whole_values(p.program, np.random.default_rng(1))
    found = on_ranks(p.program, assigned_layout(p, assignment), p.mesh.shape, values)
    expected = run_program(p.program, values)
    assert set(found) == set(expected)
    assert [name for name in found if not close(found[name], expected[name])] == []


def turned(p: CostNetwork, assignment: tuple[int, ...]) -> bool:
    """Tell whether axes cut in another order than the mesh's somewhere."""
    signatures = assigned_layout(p, assignment).signatures.values()
    return any(sbp.turn for states in signatures for state in states.values() for sbp in state)


@pytest.mark.parametrize(
    ("program", "mesh"),
    [(mlp(16, (8, 16, 8), act="relu"), "2x2x2"), (transformer(batch=4, length=4), "2x2")],
    ids=["mlp", "gpt"],
)
def test_random_plans_without_an_engine_are_right(program: Program, mesh: str) -> None:
    p = build(program, Mesh.parse(mesh), cluster(), engine=ONEFLOW.whole_space())
    points = [random_assignment(p, seed) for seed in range(6)]
    assert any(turned(p, point) for point in points)
    for point in points:
        check(p, point)


def test_the_plan_of_least_communication_is_right() -> None:
    program, every = mlp(16, (8, 16, 8), act="relu"), ONEFLOW.whole_space()
    p = build(program, Mesh.parse("2x2x2"), cluster(), engine=every)
    inner = space(p, COMMUNICATION)
    check(p, inner.invert(coordinate.search(inner.network, SearchOptions(budget=5.0)).assignment))
