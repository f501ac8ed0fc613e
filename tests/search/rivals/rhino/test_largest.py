"""Rhino's largest-k: the smallest k by trying all, and never cheaper than exact search."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.errors import InfeasibleError
from autoddl.sbp.mesh import Mesh
from autoddl.search.exact import primal_dual as exact
from autoddl.search.network.cost_network import TENSOR, CostNetwork
from autoddl.search.reductions.restriction import restricted
from autoddl.search.result import SearchOptions
from autoddl.search.rivals.rhino import largest
from experiments.lib import oneflow_problems as builder
from tests.support.clusters import cluster
from tests.support.programs import mlp


def problem_of(widths: tuple[int, ...] = (256, 1024, 64, 512, 16)) -> CostNetwork:
    program = mlp(64, widths, optimizer="adam", act="relu", bias=True)
    return builder.build(program, Mesh.parse("2"), cluster())


def cut(problem: CostNetwork, names: list[str]) -> CostNetwork:
    """The problem in which some parameters are split."""
    variables, domains = problem.variables, []
    for variable in range(len(problem)):
        choices = variables.of(variable).choices
        named = variables.name[variable] in names
        kept = [i for i, c in enumerate(choices) if not named or c[TENSOR][0].is_split]
        domains.append(np.array(kept))
    return restricted(problem, domains)


def test_k_is_the_smallest_that_fits_by_trying_all() -> None:
    problem = problem_of()
    program, names = problem.program, problem.variables.name
    order = [names[v] for v in largest.largest(problem).tolist()]
    sizes = [program.tensor[name].size_bytes for name in order]
    assert sizes == sorted(sizes, reverse=True) and len(order) == len(program.parameters)
    every = [exact.search(cut(problem, order[:k])) for k in range(len(order) + 1)]
    held, seen = [one.memory_bytes for one in every], set()
    for limit in sorted(set(held)):
        options = SearchOptions(memory_bytes=limit)
        found = largest.smallest(problem, options)
        assert found.k == next(k for k, one in enumerate(held) if one <= limit)
        assert found.parameters == len(order)
        assert found.result.cost_s == pytest.approx(every[found.k].cost_s)
        assert found.result.memory_bytes <= limit
        best = exact.search(problem, options)
        assert best.cost_s <= found.result.cost_s * (1 + 1e-9)
        seen.add(found.k)
    assert 0 in seen and len(seen) > 2


def test_what_does_not_fit_with_all_cut_is_told() -> None:
    problem = problem_of()
    options = SearchOptions(memory_bytes=problem.least_memory_bytes)
    with pytest.raises(
        InfeasibleError, match=r"'largest-k': with all 8 parameters cut .* more than"
    ):
        largest.search(problem, options)
