"""Components of where two assignments differ: they share no factor, and what they save adds up."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.search.heuristics.components import components
from autoddl.search.network.cost_network import CostNetwork, Ints, as_ints
from autoddl.search.network.evaluator import factor_s, unary_of
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.search.objects import edges_of
from tests.support.clusters import cluster
from tests.support.programs import transformer


def differing(problem: CostNetwork, share: float, seed: int) -> tuple[Ints, Ints]:
    """Two assignments of which about a share of the variables differ."""
    rng = np.random.default_rng(seed)
    one, two = (as_ints(random_assignment(problem, s)) for s in (seed, seed + 1))
    return one, np.where(rng.random(len(one)) < share, two, one)


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_components_are_independent_and_lead_from_one_point_to_the_other(share: float) -> None:
    p = builder.build(transformer(2), Mesh.parse("2x2"), cluster())
    one, two = differing(p, share, seed=3)
    found = components(p, one, two)
    owner = dict(enumerate(found[: len(p)].tolist()))
    count, differ = int(found.max()) + 1, np.flatnonzero(one != two).tolist()
    assert list(dict.fromkeys(found.tolist())) == list(range(count))
    assert (np.bincount(found)[found[: len(p)][one == two]] == 1).all()
    for number, edge in enumerate(edges_of(p)):
        nodes = {edge.producer, *(n for n, _ in edge.readers)} & set(differ)
        assert {owner[n] for n in nodes} <= {int(found[len(p) + number])}
    (compute_s, _), (other_s, _) = unary_of(p.arrays, one), unary_of(p.arrays, two)
    factors_s = factor_s(p.arrays, two) - factor_s(p.arrays, one)
    more = np.bincount(found, np.concatenate((other_s - compute_s, factors_s)))
    for component in range(count):
        changed, mine = one.copy(), found[: len(p)] == component
        changed[mine] = two[mine]
        assert p.cost_s(changed) - p.cost_s(one) == pytest.approx(more[component], abs=1e-12)
    assert more.sum() == pytest.approx(p.cost_s(two) - p.cost_s(one), rel=1e-6, abs=1e-12)
    assert len({owner[n] for n in differ}) > 1 or share == 1.0
