"""The states of an assignment, against its nodes one by one; read from columns and from dicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoddl.layouts import assigned_layout
from autoddl.owners import owners_of
from autoddl.perfmodel.accumulate import summed
from autoddl.perfmodel.memory import Layout, estimate, never_reused_bytes
from autoddl.perfmodel.sizes import LocalSizes
from autoddl.perfmodel.tasks import rank_tasks
from autoddl.perfmodel.timeline import predict
from autoddl.sbp.mesh import Mesh
from autoddl.search import builder
from autoddl.search.kept import with_kept
from autoddl.search.problem import TENSOR, Problem
from autoddl.search.random import random_assignment
from tests.clusters import cluster
from tests.programs import mlp, tied, transformer

PROGRAMS = [mlp, lambda: mlp(optimizer="momentum"), transformer, tied]


def problem_of(number: int, *, kept: bool = False) -> Problem:
    found = builder.build(PROGRAMS[number](), Mesh.parse("2x2"), cluster())
    return with_kept(found) if kept else found


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_states_are_those_that_the_nodes_choose(number: int, kept: bool) -> None:
    problem = problem_of(number, kept=kept)
    for seed in range(3):
        assignment = random_assignment(problem, seed)
        layout = assigned_layout(problem, assignment)
        states, updates = {}, {}
        pairs = zip(problem.nodes, assignment, strict=True)
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
    updates = owners_of(builder.build(changed, Mesh.parse("2x2"), cluster())).updates
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
        program = problem.program
        layout = assigned_layout(problem, random_assignment(problem, seed))
        if micro_batches > 1:
            program, layout = summed(program, layout)
        sizes = LocalSizes(program, problem.mesh.shape)
        found = never_reused_bytes(program, problem.mesh.shape, layout, sizes)
        buffers = rank_tasks(program, problem.mesh.shape, layout).buffers
        assert found == buffers.size[~buffers.reused].sum() > 0


def test_problems_with_the_same_program_share_what_ops_cost_and_take() -> None:
    problem = problem_of(0)
    other = with_kept(problem)
    assert other.prices is problem.prices and other.sizes is problem.sizes
    assert problem_of(0).sizes is not problem.sizes


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_columns_and_dicts_are_the_same_to_the_models(number: int) -> None:
    problem = problem_of(number)
    program, mesh, sizes = problem.program, problem.mesh, problem.sizes
    for seed in range(3):
        layout = assigned_layout(problem, random_assignment(problem, seed))
        plain = Layout(
            dict(layout.signatures), dict(layout.variables), dict(layout.inputs),
            tuple(layout.redistributions),
        )  # fmt: skip
        more = replace(plain, signatures={**plain.signatures, "elsewhere": {}})
        for other in (plain, more):
            assert predict(program, mesh, problem.profile, layout) == predict(
                program, mesh, problem.profile, other
            )
            for stream in (False, True):
                assert estimate(
                    program, mesh.shape, layout, sizes=sizes, compute_stream=stream
                ) == estimate(program, mesh.shape, other, sizes=sizes, compute_stream=stream)
            assert never_reused_bytes(program, mesh.shape, layout, sizes) == never_reused_bytes(
                program, mesh.shape, other, sizes
            )
