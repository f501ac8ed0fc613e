"""The queue of collectives against OneFlow's walk, literally, closed forms, and OneFlow's own plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from autoddl.engine.model import CollectiveQueue
from autoddl.engine.oneflow.job.parameter_gathers import gathers_behind
from autoddl.engine.oneflow.model.collective_queue import NCCL_QUEUE, Queued, groups, queue
from autoddl.engine.oneflow.model.memory.execution_order import execution_order
from autoddl.engine.oneflow.model.memory.liveness import merged_chains
from autoddl.engine.oneflow.model.memory.lowering import rank_tasks
from autoddl.engine.oneflow.model.memory.task_graph import CollectiveRequest, RankTasks
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from autoddl.sbp.mesh import Mesh
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.baselines import BASELINES
from experiments.lib import oneflow_problems as builder
from tests.autoddl.engine.oneflow.model.memory.graphs import task_graphs
from tests.support.clusters import cluster
from tests.support.programs import mlp
from tests.support.rows import lists

MB = 1 << 20


@given(task_graphs())
def test_waves_and_layers_are_those_of_oneflows_walk(rank: RankTasks) -> None:
    assert {one.task: (one.wave, one.layer) for one in queue(rank)} == literally(rank)


def literally(rank: RankTasks) -> dict[int, tuple[int, int]]:
    """Return the wave and layer in which OneFlow meets each request: breadth first, again and again."""
    before = [set(row) for row in lists(rank.before)]
    last: dict[int, int] = {}
    chains = merged_chains(rank).tolist()
    for task in execution_order(rank).tolist():
        if chains[task] in last:
            before[task].add(last[chains[task]])
        last[chains[task]] = task
    requests = set((rank.tasks.request >= 0).nonzero()[0].tolist())
    done, met, wave = set[int](), dict[int, tuple[int, int]](), 0
    while len(done) < len(before):
        left = {n for n in range(len(before)) if n not in done}
        visited, layer = set[int](), 0
        while walk := {n for n in left - visited if before[n] <= done | (visited - requests)}:
            met |= {task: (wave, layer) for task in walk & requests}
            visited |= walk
            layer += 1
        done, wave = done | visited, wave + 1
    return met


def test_a_parameter_is_gathered_in_the_wave_after_the_one_that_it_waits_for() -> None:
    """Of three layers of 4 MiB the last one waits for the first."""
    problem = builder.build(
        mlp(8, (1024, 1024, 1024, 1024), bias=False), Mesh.parse("2"), cluster()
    )
    assignment = BASELINES["ZeRO 2"](problem)
    assert assignment is not None
    layout = assigned_layout(problem, assignment)

    def waves(rank: RankTasks) -> list[int]:
        return [one.wave for one in queue(rank) if one.request[:2] == (ALL_GATHER, 4 * MB)]

    assert waves(rank_tasks((2,), layout)) == [0, 0, 0]
    assert waves(rank_tasks((2,), layout, gathers=gathers_behind(layout))) == [0, 0, 1]


def queued(*requests: tuple[int, float], collective: str = ALL_REDUCE) -> list[Queued]:
    """Return requests, each in a wave and of so many MB."""
    return [
        Queued(CollectiveRequest(collective, int(size * MB), (0,)), n, wave, n)
        for n, (wave, size) in enumerate(requests)
    ]


def counts(requests: list[Queued], limits: CollectiveQueue = NCCL_QUEUE) -> list[int]:
    return [len(group) for group in groups(requests, limits)]


def test_neighbours_are_joined_up_to_16_mb() -> None:
    assert counts(queued((0, 10), (0, 6), (0, 1), (0, 15), (0, 20), (0, 1))) == [2, 2, 1, 1]
    # the second takes 32 bytes, so the third does not fit
    assert counts(queued((0, 8), (0, 1 / MB), (0, 8 - 16 / MB))) == [2, 1]


def test_so_many_are_joined() -> None:
    assert counts(queued(*[(0, 0.1)] * 130)) == [64, 64, 2]
    assert counts(queued(*[(0, 0.1)] * 5), replace(NCCL_QUEUE, max_ops=2)) == [2, 2, 1]


def test_what_differs_is_not_joined() -> None:
    assert counts(queued((0, 1), (1, 1))) == [1, 1]  # another wave
    one, other = queued((0, 1), (0, 1))
    along_both = other.request._replace(axes=(0, 1))
    assert counts([one, other._replace(request=along_both)]) == [1, 1]
    scattered = other.request._replace(collective=REDUCE_SCATTER)
    assert counts([one, other._replace(request=scattered)]) == [1, 1]
    assert counts(queued((0, 1), (0, 1), collective=ALL_GATHER)) == [1, 1]
    every = replace(NCCL_QUEUE, fused=(ALL_GATHER,))
    assert counts(queued((0, 1), (0, 1), collective=ALL_GATHER), every) == [2]


@pytest.mark.oneflow
@pytest.mark.ranks
def test_the_queue_is_that_of_oneflows_plan_for_cuda() -> None:
    import autoddl
    from autoddl.api import Plan
    from autoddl.planner.assemble import make_plan
    from experiments import models
    from experiments.fidelity.memory.cuda_memory import compiled
    from experiments.fidelity.queue import equal, oneflow_queue, planned_queue

    sizes = {"widths": [256, 1024, 1024, 128], "batch": 64, "optimizer": "adam"}
    graph, inputs = models.build("mlp", **sizes)
    program = autoddl.capture(graph, *inputs)
    problem = builder.build(program, Mesh.parse("2"), cluster())
    assignment = BASELINES["ZeRO 2"](problem)
    assert assignment is not None
    plan = Plan.of(make_plan(problem, problem.result("ZeRO 2", assignment)))
    made = compiled(plan, "experiments.models:build", {"name": "mlp", **sizes})
    real, ours = oneflow_queue(made, plan.mesh), planned_queue(plan)
    assert len(real) >= 6 and equal(ours, real)
    assert not equal([one._replace(wave=0) for one in ours], real)
