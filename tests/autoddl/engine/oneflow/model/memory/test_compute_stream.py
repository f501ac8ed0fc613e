"""Boxings on the compute stream: against a count of all elements, closed forms, and OneFlow's plan."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

import numpy as np
import pytest
from hypothesis import given

from autoddl.engine.oneflow.model.engine_model import COMPUTE_STREAM
from autoddl.engine.oneflow.model.memory.compute_stream import (
    is_converted,
    stream_order,
    workspace_bytes,
)
from autoddl.engine.oneflow.model.memory.device_memory import estimate, rank_estimate
from autoddl.engine.oneflow.model.memory.liveness import merged_chains
from autoddl.engine.oneflow.model.memory.lowering import rank_tasks
from autoddl.engine.oneflow.model.rewrites.gradient_accumulation import summed
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.shards import local_shape, shard_slices
from autoddl.sbp.state import NdSbp, broadcast
from experiments.lib.oneflow_problems import redistributor
from tests.autoddl.engine.oneflow.model.memory.test_device_memory import (
    WHOLE,
    graphs,
    layout,
    op,
    program_of,
    states,
)
from tests.support.clusters import cluster
from tests.support.rows import lists

SHAPE = (24, 24)
MESHES = ((4,), (2, 2), (2, 3))


def elements(state: NdSbp, mesh: Sequence[int]) -> int:
    shape = local_shape(SHAPE, state, mesh)
    assert shape is not None
    return prod(shape)


def exchanged(before: NdSbp, after: NdSbp, mesh: tuple[int, ...]) -> set[int]:
    """Return the elements in the buffers of each device where every one sends every other its part.

    Of devices with the same values each receives from the one that shares its coordinate.
    """
    places = list(itertools.product(*map(range, mesh)))

    def held(state: NdSbp, place: tuple[int, ...]) -> np.ndarray:
        mask = np.zeros(SHAPE, dtype=bool)
        mask[shard_slices(SHAPE, state, mesh, place)] = True
        return mask

    def moved(source: tuple[int, ...], target: tuple[int, ...]) -> int:
        for axis, sbp in enumerate(before):
            if not sbp.is_split and not sbp.is_partial and source[axis] != target[axis]:
                return 0
        return int((held(before, source) & held(after, target)).sum())

    summed = elements(after, mesh) if any(s.is_partial for s in before) else 0
    return {
        sum(moved(place, other) + moved(other, place) for other in places) + summed
        for place in places
    }


# Changes for which OneFlow has a collective that packs nothing, a packing one, and those it leaves.
PLAIN = [
    ("P", "B"), ("P", "S0"), ("S0", "B"), ("P,P", "B,B"), ("S1,P", "S1,B"), ("P,S1", "B,S1"),
    ("B,S0", "B,B"), ("P,P", "P,B"), ("P,P", "S0,S0"), ("P,S0", "B,S0"),
]  # fmt: skip
PACKED = {
    ("S1", "B"): 1, ("P", "S1"): 1, ("S0", "S1"): 1, ("S1", "S0"): 1, ("B,S1", "B,B"): 1,
    ("S0,S0", "S0,S1"): 1, ("P,S1", "P,B"): 1,
}  # fmt: skip
LEFT = [("B", "P"), ("S0", "P"), ("P,P", "S0,P"), ("P,P", "P,S0"), ("S0,P", "B,P"), ("B,B", "P,B")]
EXCHANGED = [
    ("B", "S0"), ("B", "S1"), ("S1,P", "S1,S0"), ("P,B", "S0,B"), ("S0,B", "B,B"), ("S0,S1", "B,S1"),
    ("S0,B", "S1,B"), ("P,S0", "S1,S0"), ("B,S0", "S1,S0"), ("P,S0", "S0,B"), ("S0,S0", "B,S0"),
]  # fmt: skip


def on(pair: tuple[str, str]) -> list[tuple[tuple[int, ...], NdSbp, NdSbp]]:
    before, after = states(*pair)
    return [(mesh, before, after) for mesh in MESHES if len(mesh) == len(before)]


@pytest.mark.parametrize("pair", PLAIN, ids="→".join)
def test_collectives_take_no_workspace(pair: tuple[str, str]) -> None:
    for mesh, before, after in on(pair):
        assert workspace_bytes((before, after), (7, 9), mesh) == 0


@pytest.mark.parametrize("pair", PACKED, ids="→".join)
def test_pieces_along_other_dims_are_packed(pair: tuple[str, str]) -> None:
    for mesh, before, after in on(pair):
        sizes = elements(before, mesh), elements(after, mesh)
        assert workspace_bytes((before, after), sizes, mesh) == PACKED[pair] * max(sizes)


@pytest.mark.parametrize("pair", LEFT, ids="→".join)
def test_what_makes_partial_sums_is_left(pair: tuple[str, str]) -> None:
    for mesh, before, after in on(pair):
        assert not is_converted(before, after, mesh)


@pytest.mark.parametrize("pair", EXCHANGED, ids="→".join)
def test_other_changes_need_the_buffers_of_all_parts(pair: tuple[str, str]) -> None:
    for mesh, before, after in on(pair):
        sizes = elements(before, mesh), elements(after, mesh)
        assert exchanged(before, after, mesh) == {workspace_bytes((before, after), sizes, mesh)}


def test_axes_of_one_device_and_third_axes() -> None:
    assert is_converted(*states("P,B,S0", "B,B,S0"), (2, 1, 2))
    assert is_converted(*states("P,P,S0", "B,B,S0"), (2, 2, 2))  # two axes that do the same are one
    assert not is_converted(*states("P,B,S0", "B,B,S0"), (2, 2, 2))


BOXINGS = {  # bytes at the peak beside the input and the output: t1, the result, its workspace
    ("S0", "B"): lambda n, p: n + p * n,
    ("S1", "B"): lambda n, p: n + p * n + p * n,
    ("P", "B"): lambda n, p: n + n,
    ("P", "S1"): lambda n, p: n + n // p + n,
    ("B", "S0"): lambda n, p: n + n // p + 2 * (n // p),
    ("S0", "S1"): lambda n, p: n + n + n,
}


@pytest.mark.parametrize("pair", BOXINGS, ids="→".join)
@pytest.mark.parametrize("devices", [2, 4])
def test_results_of_boxings_are_reused(pair: tuple[str, str], devices: int) -> None:
    before, after = states(*pair)
    program = program_of([op(1, "tanh", 0), op(2, "tanh", 1)], ["t2"])
    b = broadcast(1)
    signatures = {"op1": {"in_0": b, "out_0": before}, "op2": {"in_0": after, "out_0": after}}
    planned = Layout.of(
        program, signatures, {}, {"x": b}, [Redistribution("t1", (after,), (("op2", "in_0"),))]
    )
    found = estimate((devices,), planned, compute_stream=True)
    local = WHOLE // devices if before[0].is_split else WHOLE
    end = WHOLE // devices if after[0].is_split else WHOLE
    held = max(BOXINGS[pair](local, devices), 2 * end)
    assert found.total == WHOLE + held + WHOLE


def one_way(program: Program) -> Layout:
    """Cut everything, but let the last op read what the one before it made whole."""
    planned = layout(program, *states("S0"))
    *_, last = program.ops
    operand, tensor = last.inputs[0]
    if tensor in program.inputs:
        return planned
    signatures = {**planned.signatures, last.name: {**planned.signatures[last.name]}}
    signatures[last.name][operand] = broadcast(1)
    moved = [Redistribution(tensor, (broadcast(1),), ((last.name, operand),))]
    return Layout.of(program, signatures, planned.variables, planned.inputs, moved)


@given(graphs())
def test_tasks_run_once_after_what_they_wait_for(program: Program) -> None:
    rank = rank_tasks((2,), one_way(program), compute_stream=True)
    order = stream_order(rank)
    assert sorted(order) == list(range(len(rank.tasks)))
    position = {task: i for i, task in enumerate(order)}
    tasks, buffers, reading = rank.tasks, rank.buffers, lists(rank.readers)
    for number, reads in enumerate(lists(rank.tasks.reads)):
        for buffer in reads:
            assert position[buffers.producer[buffer]] < position[number]
        if tasks.inserted[number]:  # just before what reads it
            reader = reading[tasks.first[number]][0]
            assert position[reader] == position[number] + 1
    chains = merged_chains(rank)
    connected = {chains[n] for n, merged in enumerate(tasks.merged) if merged}
    assert len(connected) <= 1 + sum(not reads for reads in lists(rank.tasks.reads))


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_paths_have_no_boxing_that_goes_through_the_host(mesh: str) -> None:
    free = redistributor(Mesh.parse(mesh), cluster()).table(SHAPE, 4)
    bound = redistributor(Mesh.parse(mesh), cluster(), streams=COMPUTE_STREAM).table(SHAPE, 4)
    assert free.states == bound.states
    assert (np.isfinite(free.cost) == np.isfinite(bound.cost)).all()
    assert (bound.cost >= free.cost * (1 - 1e-12)).all()
    left = set()
    for before, after in itertools.permutations(bound.states, 2):
        here = before
        for state in bound.path(before, after):
            if not is_converted(here, state, Mesh.parse(mesh).shape):
                left |= {(here[i], state[i]) for i in range(len(here)) if here[i] != state[i]}
            here = state
    assert all(old == broadcast(1)[0] for old, _ in left)  # parts and zeros, made on each device


@pytest.mark.oneflow
@pytest.mark.ranks
def test_prediction_is_oneflows_plan_for_cuda() -> None:
    import autoddl
    from autoddl.perfmodel import profile
    from autoddl.planner.assemble import make_plan
    from autoddl.search.baselines import BASELINES
    from experiments import models
    from experiments.fidelity.memory.cuda_memory import cuda_memory
    from experiments.lib.oneflow_problems import build

    sizes = {
        "layers": 1, "width": 128, "heads": 4, "sequence": 32, "vocabulary": 512, "batch": 8,
        "optimizer": "adam",
    }  # fmt: skip
    with autoddl.abstract_parameters():
        graph, inputs = models.build("gpt", **sizes)
    program = autoddl.capture(graph, *inputs)
    problem = build(program, Mesh.parse("2"), profile.load(None), compute_stream=True)
    assignment = BASELINES["Megatron"](problem)
    assert assignment is not None
    plan = make_plan(problem, problem.result("Megatron", assignment))
    assert plan.compute_stream
    shape = plan.mesh.shape
    for real in cuda_memory(plan, "experiments.models:build", {"name": "gpt", **sizes}):
        found, apart = (
            rank_estimate(
                shape, plan.layout, coords=plan.mesh.coords(real.rank),
                compute_stream=stream,
            )
            for stream in (True, False)
        )  # fmt: skip
        assert found.total == pytest.approx(real.total, rel=0.01)
        assert apart.total > 1.1 * real.total


def test_nothing_overlaps() -> None:
    from autoddl.search.assigned.assigned_layout import assigned_layout
    from experiments.lib.oneflow_problems import build
    from tests.support.programs import transformer

    problem = build(transformer(), Mesh.parse("2x2"), cluster())
    planned = assigned_layout(problem, (problem.variables.sizes - 1).tolist())
    apart, together = (
        StepTimeline(problem.setting.prices, planned, overlaps=not stream).prediction
        for stream in (False, True)
    )
    assert apart.overlap_s > 0
    assert together.overlap_s == 0
    assert together.step_s == pytest.approx(apart.step_s + apart.overlap_s)


def test_sums_are_redistributed_right_behind_their_means() -> None:
    from autoddl.search.assigned.assigned_layout import assigned_layout
    from autoddl.search.baselines import BASELINES
    from experiments.lib.oneflow_problems import build
    from tests.support.programs import transformer

    problem = build(transformer(), Mesh.parse("2"), cluster())
    planned = assigned_layout(problem, BASELINES["data parallel"](problem))
    rank = rank_tasks((2,), summed(planned), compute_stream=True)
    tasks, makers, reads = rank.tasks, rank.buffers.producer, lists(rank.tasks.reads)
    place = {task: number for number, task in enumerate(stream_order(rank))}
    moved = [n for n in range(len(tasks)) if tasks.inserted[n] and tasks.updates[n]]
    assert len(moved) > 1
    for number in moved:
        assert [place[makers[buffer]] for buffer in reads[number]] == [place[number] - 1]
