"""Steps that are simulated from choices: against timelines of layouts, which name all states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from autoddl.perfmodel.timeline import StepTimeline
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.assigned.simulated_steps import SimulatedSteps, may_be_ordered
from autoddl.search.baselines import assignments
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import Assignment
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.support.clusters import cluster
from tests.support.programs import mlp, tied, transformer
from tests.support.zoo import experts, separate_attention

PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp": mlp, "transformer": transformer, "tied": tied, "attention": separate_attention,
    "experts": lambda: experts(4, 4, 4, 16, 32),
}  # fmt: skip
PROFILE = replace(
    cluster(), overlap={"node": 0.9, "gpu": 0.6}, interference={"node": 0.2, "gpu": 0.4},
    overhead={"node": 2e-5},
)  # fmt: skip


def expected_s(network: CostNetwork, point: Assignment) -> float:
    layout = assigned_layout(network, point)
    return StepTimeline(network.setting.prices, layout, orders=may_be_ordered(network)).works.end_s


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mesh", ["4", "2x2", "2x2x2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_takes_what_the_timeline_of_its_layout_says(
    name: str, mesh: str, device: str
) -> None:
    program = dataclasses.replace(PROGRAMS[name](), device=device)
    network = builder.build(program, Mesh.parse(mesh), PROFILE)
    found = SimulatedSteps(network)
    points = [*assignments(network).values(), *(random_assignment(network, s) for s in range(6))]
    assert len({expected_s(network, point) for point in points}) > 6
    for point in points:
        assert found.step_s(point) == expected_s(network, point)


def test_what_is_known_of_prices_changes_no_step() -> None:
    network = builder.build(transformer(3), Mesh.parse("2x2"), PROFILE)
    every, points = SimulatedSteps(network), [random_assignment(network, s) for s in range(5)]
    first = [SimulatedSteps(network).step_s(point) for point in points]
    assert [every.step_s(point) for point in (*points, *points)] == [*first, *first]
