"""Redistributions: cheapest, legal, and right on simulated ranks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from autoddl.engine.oneflow.model.collective_queue import NCCL_QUEUE
from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.perfmodel.profile_entries import Link
from autoddl.perfmodel.redistribution import RedistributionTable, Redistributor
from autoddl.sbp.boxing import ALL_REDUCE, COLLECTIVES, Boxing, boxing
from autoddl.sbp.canonical import canonical
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle.simulated_boxings import run_boxing, run_path
from autoddl.sbp.numpy_oracle.simulated_tensors import assemble, shard
from autoddl.sbp.shards import all_states, check_state, local_shape
from autoddl.sbp.state import OWN, P_MAX, P_MIN, B, NdSbp, P, S, ordered
from experiments.lib.oneflow_problems import redistributor
from tests.sbp.shard_indices import shard_indices
from tests.support.clusters import cluster

PROFILE = cluster()
CASES = [
    ((8,), "4"), ((4, 8), "2x2"), ((6, 12), "2x3"), ((8, 4, 2), "2x4"), ((8, 8), "2x2x2"),
    ((8, 4), "2:3/1"), ((4, 8), "3:2/1/1"), ((8, 16), "2:3/1x2"), ((8, 16), "2x2:3/1"),
]  # fmt: skip


def bellman_ford(prices: Redistributor, shape: tuple[int, ...], src: NdSbp) -> dict[NdSbp, float]:
    """Return the cheapest cost to every state by relaxing all boxings until nothing changes."""
    mesh = prices.mesh.cuts
    every = list(all_states(shape, mesh))
    steps = [(a, b, boxing(a, b, shape, mesh)) for a, b in itertools.product(every, every)]
    priced = [(a, b, prices.boxings.step_s(step, 4)) for a, b, step in steps if step is not None]
    best = dict.fromkeys(every, np.inf) | {src: 0.0}
    while True:
        before = dict(best)
        for a, b, seconds in priced:
            best[b] = min(best[b], best[a] + seconds)
        if best == before:
            return best


@pytest.mark.parametrize(("shape", "mesh"), CASES)
def test_costs_are_shortest_paths(shape: tuple[int, ...], mesh: str) -> None:
    prices = redistributor(Mesh.parse(mesh), PROFILE)
    table = prices.table(shape, 4)
    assert set(table.states) == set(all_states(shape, prices.mesh.cuts))
    sources = np.random.default_rng(0).permutation(len(table.states))[:2]
    for i in sources:
        best = bellman_ford(prices, shape, table.states[i])
        expected = [best[state] for state in table.states]
        np.testing.assert_allclose(table.cost[i], expected, rtol=1e-9)


def path_s(prices: Redistributor, shape: tuple[int, ...], src: NdSbp, dst: NdSbp) -> float:
    here, seconds = canonical(src, shape, prices.mesh.cuts), 0.0
    for state in prices.path(shape, 4, src, dst):
        step = boxing(here, state, shape, prices.mesh.cuts, uneven=True)
        assert step is not None
        seconds, here = seconds + prices.boxings.step_s(step, 4), state
    return seconds


def test_a_table_in_any_order_of_the_axes_costs_what_single_searches_do() -> None:
    mesh, shape = Mesh.parse("2x2x2"), (8, 8)
    table = redistributor(mesh, PROFILE, engine=ONEFLOW.whole_space()).table(shape, 4)
    single = redistributor(mesh, PROFILE)
    turned = [s for s in table.states if any(x.turn for x in s)]
    assert len(table.states) == len(set(all_states(shape, mesh.cuts))) + len(turned) > 64
    rng = np.random.default_rng(0)
    for _ in range(60):
        src = turned[int(rng.integers(len(turned)))]
        dst = table.states[int(rng.integers(len(table.states)))]
        here, there = (src, dst) if rng.random() < 0.5 else (dst, src)
        cost = table.cost[table.index[here], table.index[there]]
        assert cost == pytest.approx(path_s(single, shape, here, there))


@pytest.mark.parametrize(("shape", "mesh"), CASES)
def test_paths_are_legal_cost_what_they_say_and_give_the_right_data(
    shape: tuple[int, ...], mesh: str
) -> None:
    prices = redistributor(Mesh.parse(mesh), PROFILE)
    table, axes = prices.table(shape, 4), prices.mesh.cuts
    rng = np.random.default_rng(1)
    whole = rng.normal(size=shape)
    pairs = rng.integers(0, len(table.states), (40, 2))
    for src, dst in ((table.states[i], table.states[j]) for i, j in pairs):
        here, seconds = src, 0.0
        locals_ = shard(whole, src, axes, rng)
        for state in table.path(src, dst):
            step = boxing(here, state, shape, axes)
            assert step is not None, (here, state)
            seconds += prices.boxings.step_s(step, 4)
            locals_ = run_boxing(locals_, here, state, shape, axes)
            here = state
        assert here == dst
        assert seconds == pytest.approx(table.cost[table.index[src], table.index[dst]])
        np.testing.assert_allclose(assemble(locals_, dst, axes, shape), whole)


@pytest.mark.parametrize(("shape", "mesh"), CASES)
def test_never_dearer_than_gathering_all_and_slicing(shape: tuple[int, ...], mesh: str) -> None:
    prices = redistributor(Mesh.parse(mesh), PROFILE)
    table = prices.table(shape, 4)
    whole = table.index[NdSbp((B,) * prices.mesh.ndim)]
    through = table.cost[:, whole, None] + table.cost[None, whole, :]
    assert (table.cost <= through * (1 + 1e-12)).all()


def test_an_outer_cut_under_an_inner_one_goes_through_legal_states() -> None:
    prices = redistributor(Mesh.parse("2x2"), PROFILE)
    src, dst = NdSbp((S(0), S(0))), NdSbp((B, S(0)))
    assert boxing(src, dst, (8, 8), (2, 2)) is None
    assert len(prices.table((8, 8), 4).path(src, dst)) > 1


def test_one_device_and_impossible_states() -> None:
    table = redistributor(Mesh.parse("1"), PROFILE).table((3,), 4)
    assert table.path(NdSbp((B,)), NdSbp((B,))) == ()
    uneven = redistributor(Mesh.parse("2"), PROFILE).table((3,), 4)
    with pytest.raises(AutoDDLError, match=r"does not cut shape \(3,\) evenly"):
        uneven.path(NdSbp((P,)), NdSbp((S(0),)))


def test_what_is_free_is_a_way() -> None:
    """Weights of one level alone: what crosses the other one costs nothing, and is taken."""
    weights = {"device": 0.0, "node": 1.0, "gpu": 0.0, "serial": 0.0}
    prices = redistributor(Mesh.parse("2x2"), PROFILE, weights=weights)
    table = prices.table((8, 8), 4)
    src, within, across = (NdSbp(state) for state in ((P, P), (P, B), (B, P)))
    costs = [table.cost[table.index[src], table.index[dst]] for dst in (within, across)]
    assert costs[0] == pytest.approx(0.0, abs=1e-12) and 0.0 < costs[1] < np.inf


@pytest.mark.parametrize("overhead_s", [0.0, 1e-5])
@pytest.mark.parametrize("mesh", ["4", "2x2", "2x4"])
def test_weights_are_of_the_seconds_on_each_resource(mesh: str, overhead_s: float) -> None:
    """A boxing counts what its path takes; shared seconds are those of redistributors of their own."""
    profile = replace(PROFILE, overhead={"node": overhead_s})
    shared, shape = redistributor(Mesh.parse(mesh), profile), (16, 8)
    plain = shared.table(shape, 4)
    serial = dict.fromkeys(("device", "node", "gpu"), 0.0) | {"serial": 1.0}
    np.testing.assert_allclose(shared.weighted(serial).table(shape, 4).cost, plain.cost, rtol=1e-12)
    for seed in range(3):
        drawn = np.random.default_rng(seed).random(4).tolist()
        weights = dict(zip(serial, drawn, strict=True))
        table = shared.weighted(weights).table(shape, 4)
        own = redistributor(Mesh.parse(mesh), profile, weights=weights).table(shape, 4)
        np.testing.assert_array_equal(table.cost, own.cost)
        parts_s = sum(table.parts.values())
        counted = sum(weights[resource] * s for resource, s in table.parts.items())
        reached = np.isfinite(table.cost)
        np.testing.assert_allclose(
            (counted + weights["serial"] * parts_s)[reached], table.cost[reached], rtol=1e-9
        )
        assert (parts_s[reached] >= plain.cost[reached] * (1 - 1e-9)).all()  # no path is shorter
        for src, dst in itertools.product(table.states, table.states):
            if np.isfinite(table.cost[table.index[src], table.index[dst]]):
                _has_parts(table, src, dst, shared)


def _has_parts(table: RedistributionTable, src: NdSbp, dst: NdSbp, prices: Redistributor) -> None:
    """Check that a path has the parts of its boxings, one by one."""
    expected = dict.fromkeys(table.parts, 0.0)
    for before, after in itertools.pairwise((src, *table.path(src, dst))):
        step = boxing(before, after, table.shape, prices.mesh.cuts)
        assert step is not None
        step_s, way = prices.boxings.step_s(step, 4), prices.boxings.way(step, 4)
        for resource, seconds in prices.boxings.least_parts(way, step_s):
            expected[resource] += seconds
    at = table.index[src], table.index[dst]
    assert {r: column[at] for r, column in table.parts.items()} == pytest.approx(expected)


def uniform(sizes: dict[str, tuple[int, ...]], *, inner: int = 1) -> Profile:
    """Return a profile of links without latency and equally fast, but for the launch of each step.

    With `inner` the last size of the outermost level is that of groups spanning the levels.
    """
    spanning = {next(iter(sizes)): max(next(iter(sizes.values())))} if inner > 1 else {}
    links = [
        Link(collective, level, size, 0.0, 1e-9, inner if spanning.get(level) == size else 1)
        for collective in COLLECTIVES
        for level, group_sizes in sizes.items()
        for size in group_sizes
    ]
    device = replace(PROFILE.device, op_overhead_s=1e-5)
    return replace(PROFILE, levels=tuple(sizes), links=tuple(links), devices={ALIKE: device})


CHANGES = (("P, P", "B, B"), ("S0, S0", "B, B"), ("P, P", "S1, S1"), ("S0, S0", "S1, S1"))


@pytest.mark.parametrize(("src", "dst"), CHANGES)
def test_neighbours_that_change_alike_share_one_collective(src: str, dst: str) -> None:
    prices = redistributor(Mesh.parse("2x2", levels=("gpu",)), uniform({"gpu": (2, 4)}))
    goal = NdSbp.parse(dst)
    assert prices.path((64, 64), 4, NdSbp.parse(src), goal) == (goal,)


@pytest.mark.parametrize(("src", "dst"), CHANGES)
def test_levels_are_merged_only_where_the_profile_measured_it(src: str, dst: str) -> None:
    goal = NdSbp.parse(dst)
    apart = redistributor(Mesh.parse("2x2"), uniform({"node": (2,), "gpu": (2,)}))
    assert len(apart.path((64, 64), 4, NdSbp.parse(src), goal)) > 1
    across = redistributor(Mesh.parse("2x2"), uniform({"node": (2, 4), "gpu": (2,)}, inner=2))
    assert across.path((64, 64), 4, NdSbp.parse(src), goal) == (goal,)


@pytest.mark.parametrize(("shape", "mesh"), [((8, 16), "2x4"), ((8, 8), "2x2x2")])
def test_in_a_queue_one_collective_is_taken_up_to_twice_the_seconds(
    shape: tuple[int, ...], mesh: str
) -> None:
    profile = profiles.load("v100-8x", device_type="cuda")
    axes = Mesh.parse(mesh)
    free, queued = (redistributor(axes, profile, queue=queue) for queue in (None, NCCL_QUEUE))
    least, table = free.table(shape, 1 << 18), queued.table(shape, 1 << 18)
    longer = 0
    for src, dst in itertools.permutations(table.states, 2):
        least_s = least.cost[least.index[src], least.index[dst]]
        step = boxing(src, dst, shape, axes.shape)
        step_s = math.inf if step is None else queued.boxings.step_s(step, 1 << 18)
        at_once = table.path(src, dst) == (dst,)
        assert at_once == (step_s <= 2 * least_s)
        longer += at_once and step_s > least_s
        here, seconds = src, 0.0
        for state in table.path(src, dst):
            step = boxing(here, state, shape, axes.shape)
            assert step is not None
            seconds, here = seconds + queued.boxings.step_s(step, 1 << 18), state
        assert table.cost[table.index[src], table.index[dst]] == pytest.approx(seconds)
    assert longer


def test_groups_that_cross_one_link_share_it() -> None:
    """A P→B between nodes of two GPUs: two groups at a time over each node's link, half as fast each.

    Source: two groups of 1 MB over a 500 Mbit/s link take 2 · 8 Mbit / 500 Mbit/s = 32 ms.
    """
    bandwidth = 500e6 / 8
    links = (Link("all_reduce", "node", 2, 0.0, 1 / bandwidth),)
    profile = replace(uniform({"node": (2,), "gpu": (2,)}), links=links)
    goal = NdSbp.parse("B, B")
    for mesh, seconds in (("2x1", 16e-3), ("2x2", 32e-3), ("2x4", 64e-3)):
        prices = redistributor(Mesh.parse(mesh), profile)
        step = boxing(NdSbp.parse("P, B"), goal, (1000, 250), prices.mesh.cuts)
        assert step is not None
        assert prices.boxings.step_s(step, 4) == pytest.approx(seconds + 1e-5)


# --- any two states: uneven shards, strides, orders, maxima -----------------------------------


@st.composite
def problems(draw: st.DrawFn) -> tuple[str, tuple[int, ...], NdSbp, NdSbp]:
    """Draw a mesh of up to three axes, a shape of up to four dims and two states of it."""
    mesh = Mesh.parse(
        tuple(draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=3)))
    )
    shape = tuple(draw(st.lists(st.sampled_from([4, 6, 8, 16, 7]), min_size=1, max_size=4)))
    partial = draw(st.sampled_from([P, P, P, P_MAX, P_MIN]))

    def state() -> NdSbp:
        kinds = st.sampled_from(["B", "P", "S", "S", "S"])
        entries = [
            {"B": B, "P": partial}.get(draw(kinds)) or S(draw(st.integers(0, len(shape) - 1)))
            for _ in mesh.cuts
        ]
        if draw(st.integers(0, 4)) == 0:
            entries = [
                S(e.dim, draw(st.sampled_from([1, 2]))) if e.is_split else e for e in entries
            ]
        order = draw(st.permutations(range(mesh.ndim))) if draw(st.booleans()) else range(mesh.ndim)
        return ordered(entries, order)

    return mesh.describe(), shape, state(), state()


def possible(state: NdSbp, shape: tuple[int, ...], mesh: tuple[int, ...]) -> bool:
    try:
        check_state(state, shape, mesh)
    except AutoDDLError:
        return False
    return True


def lacking(src: NdSbp, dst: NdSbp, shape: tuple[int, ...], mesh: tuple[int, ...]) -> float:
    """Return how many elements a device must receive at least, on average.

    It needs its shard under `dst` and has the one under `src`; of partial values it has too little of
    everything, unless it keeps them partial.
    """
    lacked = []
    for coords in itertools.product(*map(range, mesh)):
        has = [set(i.tolist()) for i in shard_indices(shape, src, mesh, coords)]
        needs = [set(i.tolist()) for i in shard_indices(shape, dst, mesh, coords)]
        total = math.prod(map(len, needs))
        reduced = any(
            a.is_partial and not b.is_partial and n > 1
            for a, b, n in zip(src, dst, mesh, strict=True)
        )
        made_partial = any(
            b.is_partial and not a.is_partial and n > 1
            for a, b, n in zip(src, dst, mesh, strict=True)
        )
        if made_partial:
            continue  # a device may hold zeros of what it lacks
        common = math.prod(len(a & b) for a, b in zip(has, needs, strict=True))
        lacked.append(total if reduced else total - common)
    return sum(lacked) / math.prod(mesh)


def received(step: Boxing, group_size: int) -> float:
    """Return how many elements each device receives in a ring or pairwise exchange."""
    if step.primitive not in COLLECTIVES:
        return 0.0
    rounds = 2 if step.primitive == ALL_REDUCE else 1
    return rounds * (group_size - 1) / group_size * step.elements


@given(problems())
def test_any_redistribution(problem: tuple[str, tuple[int, ...], NdSbp, NdSbp]) -> None:
    notation, shape, src, dst = problem
    prices = redistributor(Mesh.parse(notation), PROFILE)
    mesh = prices.mesh.cuts
    if not (possible(src, shape, mesh) and possible(dst, shape, mesh)):
        with pytest.raises(AutoDDLError):
            prices.path(shape, 4, src, dst)
        return
    path = prices.path(shape, 4, src, dst)
    start = canonical(src, shape, mesh)
    assert (path or (start,))[-1] == canonical(dst, shape, mesh)

    rng = np.random.default_rng(2)
    whole = rng.normal(size=shape)
    locals_ = run_path(shard(whole, src, mesh, rng), start, path, shape, mesh)
    np.testing.assert_allclose(assemble(locals_, dst, mesh, shape), whole, rtol=1e-9)

    moved, here, seconds = 0.0, start, 0.0
    for state in path:
        step = boxing(here, state, shape, mesh, uneven=True)
        assert step is not None
        moved += received(step, math.prod(mesh[i] for i in step.axes))
        seconds += prices.boxings.step_s(step, 4)
        here = state
    assert moved >= lacking(src, dst, shape, mesh) * (1 - 1e-9)
    assert seconds <= gather_then_slice_s(prices, shape, start, here) * (1 + 1e-12)


def gather_then_slice_s(
    prices: Redistributor, shape: tuple[int, ...], src: NdSbp, dst: NdSbp
) -> float:
    """Return the seconds of making everything whole, last cut first, and cutting it again."""
    mesh = prices.mesh.cuts
    seconds = 0.0
    for state in (src, dst):
        order = sorted(
            (i for i, s in enumerate(state) if s != B),
            key=lambda i: (state[i].turn, i),
            reverse=True,
        )
        here = state
        for axis in order:
            whole = here.replace(axis, B)
            pair = (here, whole) if state is src else (whole, here)
            step = boxing(*pair, shape, mesh, uneven=True)
            assert step is not None
            seconds += prices.boxings.step_s(step, 4)
            here = whole
    return seconds


def test_a_sum_never_becomes_a_maximum() -> None:
    prices = redistributor(Mesh.parse("2"), PROFILE)
    path = prices.path((8,), 4, NdSbp((P,)), NdSbp((P_MAX,)))
    assert NdSbp((B,)) in path or NdSbp((S(0),)) in path


def test_uneven_paths_keep_to_what_can_be() -> None:
    prices = redistributor(Mesh.parse("2x2"), PROFILE)
    assert local_shape((6,), NdSbp.parse("S0, S0"), (2, 2)) is None
    path = prices.path((6,), 4, NdSbp.parse("S0, S0"), NdSbp.parse("B, B"))
    assert path == (NdSbp.parse("S0, B"), NdSbp.parse("B, B"))


def test_values_of_ones_own_stay_as_they_are() -> None:
    prices = redistributor(Mesh.parse("2x2"), PROFILE)
    table = prices.table((8,), 4, own=True)
    own = [i for i, state in enumerate(table.states) if OWN in state]
    rest = [i for i in range(len(table.states)) if i not in own]
    assert own and np.isinf(table.cost[np.ix_(own, rest)]).all()
    assert np.isinf(table.cost[np.ix_(rest, own)]).all()
    src, dst = NdSbp.parse("B*, S0"), NdSbp.parse("B*, B")
    assert table.path(src, dst) == (dst,)
    assert dst.executed == NdSbp.parse("B, B")
    with pytest.raises(AutoDDLError, match=r"\(B\*, B\) to \(B, B\).*differ between devices"):
        table.path(dst, NdSbp.parse("B, B"))
    assert not any(OWN in state for state in prices.table((8,), 4).states)
