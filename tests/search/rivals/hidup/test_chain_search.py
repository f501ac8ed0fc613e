"""HiDup's search as a solver: its choices are in the plan, which is complete, fits, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoddl import optimize
from autoddl.api import load
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.sbp.mesh import Mesh
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.result import SearchOptions
from autoddl.search.rivals.hidup import chain_search, pareto
from autoddl.search.rivals.hidup.forward_chain import forward_chain
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

PROGRAMS = {"mlp": mlp(4096, (512, 2048, 512)), "transformer": transformer(2)}


@pytest.mark.parametrize("mesh", ["2", "4", "8"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_plan_is_complete_and_has_the_choices_of_the_chain(
    name: str, mesh: str, tmp_path: Path
) -> None:
    network = build(PROGRAMS[name], Mesh.parse(mesh), cluster())
    found = chain_search.search(network)
    made = forward_chain(network)
    chosen = dict(made.chosen(pareto.search(made.chain)))
    assert {v: found.assignment[v] for v in chosen} == chosen
    layout = assigned_layout(network, found.assignment)
    step_s = StepTimeline(network.setting.prices, layout, orders=True).works.end_s
    plan = optimize(PROGRAMS[name], mesh=mesh, profile=cluster(), search="hidup")
    assert plan.search.solver == "hidup" and plan.check_runnable() == "oneflow"
    assert plan.estimate.step_s == pytest.approx(step_s)
    assert 0 <= plan.search.gap < 1
    assert plan.search.lower_bound_s <= plan.estimate.step_s
    assert set(plan.signatures) == {op.name for op in PROGRAMS[name].ops}
    best = optimize(PROGRAMS[name], mesh=mesh, profile=cluster(), budget=5)
    assert plan.estimate.step_s >= best.search.lower_bound_s * (1 - 1e-9)
    plan.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json").signatures == plan.signatures


def test_starts_are_kept_where_they_are_cheaper() -> None:
    network = build(PROGRAMS["transformer"], Mesh.parse("2"), cluster())
    alone = chain_search.search(network)
    start = random_assignment(network, 0)
    both = chain_search.search(network, SearchOptions(starts=[start]))
    assert both.cost_s == min(alone.cost_s, network.cost_s(start))


@pytest.mark.parametrize("where", [{"mesh": "2x4"}, {"cluster": "2x4"}])
def test_two_axes_are_refused(where: dict[str, str]) -> None:
    with pytest.raises(AutoDDLError, match=r"one axis of a mesh; give mesh='8'") as caught:
        optimize(PROGRAMS["mlp"], profile=cluster(), search="hidup", **where)
    assert "\n" not in str(caught.value)
    with pytest.raises(AutoDDLError, match="one axis"):
        chain_search.search(build(PROGRAMS["mlp"], Mesh.parse("2x4"), cluster()))


def test_axes_of_one_device_are_none() -> None:
    plan = optimize(PROGRAMS["mlp"], mesh="1x4", profile=cluster(), search="hidup")
    assert plan.search.solver == "hidup"


def test_what_does_not_fit_is_refused() -> None:
    network = build(PROGRAMS["transformer"], Mesh.parse("2"), cluster())
    found, least = chain_search.search(network), network.least_memory_bytes
    with pytest.raises(InfeasibleError, match="does not know of memory"):
        chain_search.search(network, SearchOptions(memory_bytes=least))
    assert found.memory_bytes > least
