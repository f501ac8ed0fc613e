"""The order of a device's works: an example by hand, and all orders of small graphs as oracle."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autoddl.perfmodel.resources import DEVICE
from autoddl.perfmodel.simulation.event_simulation import Works
from autoddl.perfmodel.simulation.list_schedule import WORTH, ordered
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.perfmodel.works import SimulatedWork, works_of
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer
from tests.support.simulated import predict


def test_what_a_boxing_waits_for_goes_first() -> None:
    works = works_of([
        SimulatedWork("other", ((DEVICE, 1.0),)),
        SimulatedWork("first", ((DEVICE, 2.0),), next=[2]),
        SimulatedWork("boxing", (("node", 4.0),), waits=1, next=[3]),
        SimulatedWork("last", ((DEVICE, 1.0),), waits=1),
    ])  # fmt: skip
    better = ordered(works, np.array([0, 1, 3]))
    assert works.end_s == 8
    assert better is not None and better.end_s == 7
    assert [span.name for span in better.spans()] == ["first", "other", "boxing", "last"]


def test_what_can_not_be_better_is_left_as_it_is() -> None:
    chain = [
        SimulatedWork("a", ((DEVICE, 1.0),), next=[1]),
        SimulatedWork("b", ((DEVICE, 1.0),), 1),
    ]
    assert ordered(works_of(chain), np.array([0, 1])) is None
    assert ordered(works_of([SimulatedWork("a", (("node", 1.0),))]), np.array([], np.int64)) is None


def drawn(rng: np.random.Generator) -> tuple[Works, list[int]]:
    """Return works of up to six ops, with a boxing behind most, and which of them are ops."""
    found: list[SimulatedWork] = []
    ops: list[int] = []
    for _ in range(6):
        ends = [n for n in range(len(found)) if n not in ops or rng.random() < 0.3]
        before = [n for n in ends if rng.random() < 0.4]
        ops.append(len(found))
        found.append(SimulatedWork("op", ((DEVICE, float(rng.integers(1, 9))),), len(before)))
        for earlier in before:
            found[earlier].next.append(ops[-1])
        if rng.random() < 0.7:
            found[-1].next.append(len(found))
            found.append(SimulatedWork("boxing", (("node", float(rng.integers(1, 9))),), 1))
    return works_of(found), ops


def least_s(works: Works, ops: list[int]) -> float:
    """Return the end of the best order of all."""
    first = np.arange(len(works.names)).repeat(np.diff(works.graph.first))
    needs = {(a, b) for a, b in zip(first.tolist(), works.graph.later.tolist(), strict=True)}
    for middle in range(len(works.names)):  # closure: a boxing may stand between two ops
        needs |= {(a, d) for a, b in needs if b == middle for c, d in needs if c == middle}
    turns = [
        turn
        for turn in itertools.permutations(ops)
        if not any((b, a) in needs for a, b in itertools.combinations(turn, 2))
    ]
    return min(works.behind(np.array(t)).end_s for t in turns)


def test_orders_are_near_the_best_of_all() -> None:
    """Of 60 graphs 49 have a better order than as works are ready; 31 times the best is found."""
    rng, helped, best, lost_s, found_s = np.random.default_rng(0), 0, 0, 0.0, 0.0
    for _ in range(60):
        works, ops = drawn(rng)
        least, better = least_s(works, ops), ordered(works, np.array(ops))
        end_s = works.end_s if better is None else better.end_s
        assert least <= end_s <= works.end_s
        could = least < (1 - WORTH) * works.end_s
        helped += could
        best += could and end_s == least
        lost_s, found_s = lost_s + works.end_s - least, found_s + works.end_s - end_s
    assert helped > 20 and best / helped > 0.5
    assert found_s / lost_s > 0.7


@pytest.mark.parametrize("make", [mlp, transformer])
def test_a_layout_that_keeps_the_order_takes_as_long(make: Callable[[], Program]) -> None:
    """What is written into the plan, and from there into the job, is what was simulated."""
    profile = cluster()
    problem = builder.build(make(), Mesh.parse("2x2"), profile)
    found = 0
    for seed in range(6):
        layout = assigned_layout(problem, random_assignment(problem, seed))
        free = predict(problem.mesh, profile, layout).step_s
        timeline = StepTimeline(problem.setting.prices, layout, orders=True)
        told = replace(layout, after=timeline.after)
        assert predict(problem.mesh, profile, told).step_s == timeline.prediction.step_s <= free
        found += bool(timeline.after)
    assert found
