"""Redistributions: cheapest, legal, and right on simulated ranks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.redistribute import Redistributor
from autoddl.sbp.boxing import boxing
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numeric import assemble, run_boxing, shard
from autoddl.sbp.state import B, NdSbp, P, S, all_states, axis_states
from tests.clusters import cluster

PROFILE = cluster()
CASES = [((8,), "4"), ((4, 8), "2x2"), ((6, 12), "2x3"), ((8, 4, 2), "2x4"), ((8, 8), "2x2x2")]


def bellman_ford(prices: Redistributor, shape: tuple[int, ...], src: NdSbp) -> dict[NdSbp, float]:
    """Return the cheapest cost to every state by relaxing all boxings until nothing changes."""
    mesh = prices.mesh.shape
    best = {src: 0.0}
    while True:
        changed = False
        for state, cost in list(best.items()):
            for axis, entry in itertools.product(range(len(mesh)), axis_states(len(shape))):
                step = boxing(state, state.replace(axis, entry), shape, mesh)
                if step is None:
                    continue
                total = cost + prices.step_s(step, 4)
                after = state.replace(axis, entry)
                if total < best.get(after, np.inf) - 1e-15:
                    best[after], changed = total, True
        if not changed:
            return best


@pytest.mark.parametrize(("shape", "mesh"), CASES)
def test_costs_are_shortest_paths(shape: tuple[int, ...], mesh: str) -> None:
    prices = Redistributor(Mesh.parse(mesh), PROFILE)
    table = prices.table(shape, 4)
    assert set(table.states) == set(all_states(shape, prices.mesh.shape))
    sources = np.random.default_rng(0).permutation(len(table.states))[:4]
    for i in sources:
        best = bellman_ford(prices, shape, table.states[i])
        expected = [best[state] for state in table.states]
        np.testing.assert_allclose(table.cost[i], expected, rtol=1e-9)


@pytest.mark.parametrize(("shape", "mesh"), CASES)
def test_paths_are_legal_cost_what_they_say_and_give_the_right_data(
    shape: tuple[int, ...], mesh: str
) -> None:
    prices = Redistributor(Mesh.parse(mesh), PROFILE)
    table, axes = prices.table(shape, 4), prices.mesh.shape
    rng = np.random.default_rng(1)
    whole = rng.normal(size=shape)
    pairs = rng.integers(0, len(table.states), (40, 2))
    for src, dst in ((table.states[i], table.states[j]) for i, j in pairs):
        here, seconds = src, 0.0
        locals_ = shard(whole, src, axes, rng)
        for state in table.path(src, dst):
            step = boxing(here, state, shape, axes)
            assert step is not None, (here, state)
            seconds += prices.step_s(step, 4)
            locals_ = run_boxing(locals_, here, state, shape, axes)
            here = state
        assert here == dst
        assert seconds == pytest.approx(table.cost[table.index[src], table.index[dst]])
        np.testing.assert_allclose(assemble(locals_, dst, axes, shape), whole)


@pytest.mark.parametrize(("shape", "mesh"), CASES)
def test_never_dearer_than_gathering_all_and_slicing(shape: tuple[int, ...], mesh: str) -> None:
    prices = Redistributor(Mesh.parse(mesh), PROFILE)
    table = prices.table(shape, 4)
    whole = table.index[NdSbp((B,) * prices.mesh.ndim)]
    through = table.cost[:, whole, None] + table.cost[None, whole, :]
    assert (table.cost <= through * (1 + 1e-12)).all()


def test_an_outer_cut_under_an_inner_one_goes_through_legal_states() -> None:
    prices = Redistributor(Mesh.parse("2x2"), PROFILE)
    src, dst = NdSbp((S(0), S(0))), NdSbp((B, S(0)))
    assert boxing(src, dst, (8, 8), (2, 2)) is None
    assert len(prices.table((8, 8), 4).path(src, dst)) > 1


def test_one_device_and_impossible_states() -> None:
    table = Redistributor(Mesh.parse("1"), PROFILE).table((3,), 4)
    assert table.path(NdSbp((B,)), NdSbp((B,))) == ()
    uneven = Redistributor(Mesh.parse("2"), PROFILE).table((3,), 4)
    with pytest.raises(AutoDDLError, match=r"does not cut shape \(3,\) evenly"):
        uneven.path(NdSbp((P,)), NdSbp((S(0),)))
