"""The states of an assignment, against its nodes one by one; read from columns and from dicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoddl.engine.oneflow.model.memory.device_memory import estimate
from autoddl.engine.oneflow.model.memory.lowering import never_reused_bytes, rank_tasks
from autoddl.engine.oneflow.model.memory.sizes import LocalSizes
from autoddl.engine.oneflow.model.rewrites.gradient_accumulation import summed
from autoddl.sbp.layout import Layout
from autoddl.sbp.mesh import Mesh
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.assigned.ownership import owners
from autoddl.search.network.cost_network import TENSOR, CostNetwork
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.search.objects import nodes_of
from tests.support.clusters import cluster
from tests.support.programs import mlp, tied, transformer
from tests.support.simulated import predict

PROGRAMS = [mlp, lambda: mlp(optimizer="momentum"), transformer, tied]


def problem_of(number: int, *, kept: bool = False) -> CostNetwork:
    found = builder.build(PROGRAMS[number](), Mesh.parse("2x2"), cluster())
    return SavedTensors.apply(found).network if kept else found


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_states_are_those_that_the_nodes_choose(number: int, kept: bool) -> None:
    problem = problem_of(number, kept=kept)
    for seed in range(3):
        assignment = random_assignment(problem, seed)
        layout = assigned_layout(problem, assignment)
        states, updates = {}, {}
        pairs = zip(nodes_of(problem), assignment, strict=True)
        chosen = {(node.kind, node.name): node.choices[choice] for node, choice in pairs}
        for parameter in problem.program.parameters:
            state = chosen["parameter", parameter.tensor][TENSOR]
            states |= dict.fromkeys((parameter.tensor, *parameter.states), state)
            if parameter.update is not None:
                updates[parameter.update] = problem.update_signature(parameter, state)
        assert layout.variables == states
        assert layout.inputs == {
            name: choice[TENSOR] for (kind, name), choice in chosen.items() if kind == "input"
        }
        ops = {name: choice for (kind, name), choice in chosen.items() if kind == "op"}
        assert layout.signatures == {**ops, **updates}
        assert set(layout.signatures) == set(problem.program.op)


def test_updates_are_told_apart_by_the_operands_that_have_the_state_of_the_parameter() -> None:
    program = transformer()
    first, second, *rest = program.parameters
    fewer = replace(second, states=second.states[:1])  # the other one stays whole
    changed = replace(program, parameters=(first, fewer, *rest))
    updates = owners(builder.build(changed, Mesh.parse("2x2"), cluster())).updates
    assert updates.pattern.tolist() == [0, 1, *[0] * len(rest)]
    assert [program.ops[op].name for op in updates.op] == [p.update for p in program.parameters]
    assert [program.tensors[t].name for t in updates.tensor] == [
        p.tensor for p in program.parameters
    ]


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_what_is_never_reused_is_that_of_all_tasks(number: int, micro_batches: int) -> None:
    problem = problem_of(number)
    for seed in range(3):
        layout, mesh = (
            assigned_layout(problem, random_assignment(problem, seed)),
            problem.mesh.shape,
        )
        if micro_batches > 1:
            layout = summed(layout)
        found = never_reused_bytes(mesh, layout, LocalSizes(layout.program, mesh))
        buffers = rank_tasks(mesh, layout).buffers
        assert found == buffers.size[~buffers.reused].sum() > 0


def test_problems_with_the_same_program_share_what_ops_cost_and_take() -> None:
    problem = problem_of(0)
    other = SavedTensors.apply(problem).network
    assert other.setting is problem.setting
    assert problem_of(0).setting is not problem.setting


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_columns_and_dicts_are_the_same_to_the_models(number: int) -> None:
    problem = problem_of(number)
    program, mesh, sizes = (
        problem.program,
        problem.mesh,
        LocalSizes(problem.program, problem.mesh.shape),
    )
    for seed in range(3):
        layout = assigned_layout(problem, random_assignment(problem, seed))
        held = dict(layout.variables), dict(layout.inputs), layout.redistributions
        plain = Layout.of(program, dict(layout.signatures), *held)
        more = Layout.of(program, {**layout.signatures, "elsewhere": {}}, *held)
        for other in (plain, more):
            assert other == layout
            assert predict(mesh, problem.profile, layout) == predict(mesh, problem.profile, other)
            for stream in (False, True):
                assert estimate(mesh.shape, layout, sizes=sizes, compute_stream=stream) == estimate(
                    mesh.shape, other, sizes=sizes, compute_stream=stream
                )
            assert never_reused_bytes(mesh.shape, layout, sizes) == never_reused_bytes(
                mesh.shape, other, sizes
            )
