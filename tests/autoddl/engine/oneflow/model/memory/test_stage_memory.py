"""Memory of stages: parts are whole programs, nothing is lost between them, credits cost memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from autoddl.engine.oneflow.model.memory.device_memory import estimate, stage_memory
from autoddl.engine.oneflow.model.script_model import SCRIPT
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.layout import Layout
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.rewrites.stage_program import ARRIVAL, ARRIVED, CROSSING, DEPARTURE
from autoddl.search.exact.primal_dual import search
from autoddl.search.result import SearchOptions
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.support.clusters import cluster
from tests.support.programs import mlp
from tests.support.zoo import ZOO

MESH = "2"
NAMES = tuple(ZOO)


@cache
def assigned(name: str) -> Assigned:
    program = mlp(64, (64,) * 9, act="relu") if name == "long mlp" else ZOO[name]()
    problem = builder.build(program, Mesh.parse(MESH), cluster())
    return Assigned(problem, search(problem, SearchOptions(budget=5, seed=0)).assignment)


def staged(name: str, bounds: Sequence[int], micro_batches: int = 4) -> Staged:
    whole = assigned(name)
    links = Links(whole.problem.profile, Mesh.parse("4x2").cluster)
    found = positions(whole.problem.program)
    return Staged.equal(whole, found, bounds, micro_batches, links)


def equal_cut(name: str, stages: int) -> list[int]:
    count = positions(assigned(name).problem.program).count
    return [count * number // stages for number in range(1, stages)]


def parts(cut: Staged) -> list[Layout]:
    return [cut.stage_run(stage) for stage in range(cut.stages)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_one_stage_needs_what_the_whole_program_needs(name: str, micro_batches: int) -> None:
    whole = assigned(name)
    expected = estimate(whole.problem.mesh.shape, whole.layout, micro_batches=micro_batches)
    assert staged(name, (), micro_batches).memory == (expected,)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_op_and_variable_is_in_one_part(name: str, stages: int) -> None:
    cut = staged(name, equal_cut(name, stages))
    found = parts(cut)
    ops = Counter(op for p in found for op in p.program.ops if op.type not in CROSSING)
    assert ops == Counter(cut.program.ops)
    variables = Counter(n for p in found for n in p.variables)
    assert variables == Counter(list(cut.assigned(0).layout.variables))
    inputs = Counter(n for p in found for n in p.program.inputs)
    assert inputs == Counter(cut.program.inputs)
    assert Counter(n for p in found for n in p.program.outputs) == Counter(cut.program.outputs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_parts_are_whole_programs(name: str, stages: int) -> None:
    """All that an op reads is there before it, and arrivals are what other stages send."""
    cut = staged(name, equal_cut(name, stages))
    for stage, found in enumerate(parts(cut)):
        program = found.program
        made = {*program.inputs, *found.variables}
        for op in program.ops:
            read = {t for _, t in op.inputs if program.tensor[t].role != "system"}
            assert read <= made, op.name
            made |= {t for _, t in op.outputs}
            assert set(dict(op.operands)) >= set(found.signatures[op.name])
        arrived = [t for op in program.ops if op.type == ARRIVED for _, t in op.outputs]
        left = [t for op in program.ops if op.type == DEPARTURE for _, t in op.inputs]
        assert sorted(arrived) == sorted(t.tensor for t in cut.transfers if t.target == stage)
        assert sorted(left) == sorted(t.tensor for t in cut.transfers if t.source == stage)
        assert len(arrived) == sum(op.type == ARRIVAL for op in program.ops)  # no pieces here


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_stages_hold_the_parameters_of_the_whole_together(name: str, stages: int) -> None:
    (whole,) = staged(name, ()).memory
    cut = staged(name, equal_cut(name, stages)).memory
    assert sum(memory.parameters for memory in cut) == whole.parameters
    assert sum(memory.optimizer_states for memory in cut) == whole.optimizer_states


@pytest.mark.parametrize("name", NAMES)
def test_each_micro_batch_in_flight_needs_the_same_more(name: str) -> None:
    cut = staged(name, equal_cut(name, 2))
    first = parts(cut)[0]
    shape = cut.assigned(0).problem.mesh.shape
    needed = [
        stage_memory(shape, first, micro_batches=8, in_flight=count).total for count in range(2, 7)
    ]
    more = set(np.diff(needed).tolist())
    assert len(more) == 1
    # At most what the backward pass reads of the forward pass and of inputs, whole.
    made = {t for o in first.program.ops if o.phase == "forward" for _, t in o.outputs}
    read = {t for o in first.program.ops if o.phase == "backward" for _, t in o.inputs}
    kept = read & (made | set(first.program.inputs))
    sizes = [first.program.tensor[n].size_bytes for n in kept]
    assert 0 < more.pop() <= sum(sizes) + 512 * len(sizes)


def test_over_shares_the_device_with_most_counts() -> None:
    problem = builder.build(mlp(64, (64, 128)), Mesh.parse("2:3/1x2"), cluster(), engine=SCRIPT)
    whole = Assigned(problem, random_assignment(problem, 1))
    several, mesh = {"micro_batches": 4, "in_flight": 2}, problem.mesh
    held = [
        stage_memory(mesh.portion(rank), whole.layout, **several).total for rank in range(mesh.size)
    ]
    assert stage_memory(mesh.cuts, whole.layout, **several).total == max(held) > min(held)


@pytest.mark.parametrize("stages", [2, 4])
def test_earlier_stages_hold_more_micro_batches(stages: int) -> None:
    cut = staged("long mlp", equal_cut("long mlp", stages), micro_batches=8)
    assert cut.in_flight == tuple(stages - stage for stage in range(stages))
    fewer = staged("long mlp", equal_cut("long mlp", stages), micro_batches=1)
    assert fewer.in_flight == (1,) * stages
    assert cut.memory[0].activations_peak > fewer.memory[0].activations_peak


@pytest.mark.parametrize("name", ["long mlp", "deep mlp", "gpt"])
def test_making_results_again_needs_less(name: str) -> None:
    cut = staged(name, equal_cut(name, 2))
    first, shape = parts(cut)[0], cut.assigned(0).problem.mesh.shape
    needed = {
        again: stage_memory(shape, first, micro_batches=8, in_flight=6, recompute=again).total
        for again in (False, True)
    }
    assert needed[True] < needed[False]
    links = Links(cut.assigned(0).problem.profile, Mesh.parse("4x2").cluster)
    found = positions(cut.program)
    again = Staged.equal(cut.assigned(0), found, cut.bounds, 4, links, recomputed=(0,))
    assert again.memory[1] == cut.memory[1]
    assert again.step.stages[1] == cut.step.stages[1]

    def copied_s(found: Staged) -> float:
        return sum(s.seconds for s in found.added if (s.stage, s.phase) == (0, "forward"))

    work, copied = cut.step.stages[0], copied_s(cut)
    forward = sum(seconds for _, seconds in work.forward) - copied
    backward = sum(seconds for _, seconds in work.backward)
    assert copied_s(again) < copied
    twice = sum(seconds for _, seconds in again.step.stages[0].backward)
    assert twice == pytest.approx(forward + backward)
