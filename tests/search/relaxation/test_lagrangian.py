"""Plans at the price of memory, before an integer program looks for better ones."""

from __future__ import annotations

import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.exact import primal_dual as exact
from autoddl.search.result import SearchOptions
from autoddl.search.rivals.rhino import largest
from experiments.lib import oneflow_problems as builder
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

MLP = mlp(64, (256,) * 9 + (16,), optimizer="adam", act="relu", bias=True)
CASES = [(MLP, "4", 0.6), (MLP, "4", 0.4), (MLP, "2", 0.6), (transformer(4), "2", 0.8)]


@pytest.mark.parametrize(("program", "mesh", "part"), CASES)
def test_plans_are_as_cheap_as_with_the_largest_parameters_cut(
    program: Program, mesh: str, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rhino's way takes no price: the k largest parameters are cut, and k is as small as fits."""
    problem = builder.build(program, Mesh.parse(mesh), cluster())
    free, least = exact.search(problem).memory_bytes, problem.least_memory_bytes
    options = SearchOptions(memory_bytes=int(least + part * (free - least)))
    monkeypatch.setattr(exact, "finish", lambda *_: None)
    found, forced = exact.search(problem, options), largest.smallest(problem, options)
    assert forced.k > 0
    assert found.memory_bytes <= options.memory_bytes
    assert found.cost_s <= forced.result.cost_s * (1 + 1e-9)
    assert found.lower_bound_s <= forced.result.cost_s * (1 + 1e-9)
