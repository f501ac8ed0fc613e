"""Cuts and placements on parts of unlike classes: equal to brute force."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline import part_graph as placed_parts
from autoddl.perfmodel.pipeline.part_graph import PlacedParts, part_graph
from autoddl.perfmodel.pipeline.placed_cut import NO_LIMIT, Chains, place

RANDOM = 300
MOST = 4  # stages


class Case(NamedTuple):
    """A random chain: by class (row) and unit the seconds and bytes, by pair of classes the transfers."""

    other: np.ndarray
    last: np.ndarray
    once: np.ndarray
    held: np.ndarray
    active: np.ndarray
    sent: dict[tuple[int, int, bool], np.ndarray]
    needs: list[tuple[int, ...]]
    pools: tuple[int, ...]
    per_node: tuple[int, ...]
    micro_batches: int


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    units, classes = int(rng.integers(1, 9)), int(rng.integers(1, 4))
    pools = tuple(rng.integers(1, 5, max(1, classes - 1 + seed % 2)).tolist())
    per_node = tuple(rng.integers(1, 4, len(pools)).tolist())
    needs = []
    for kind in range(classes):
        need = [0] * len(pools)
        for pool in {kind % len(pools), int(rng.integers(0, len(pools)))}:
            need[pool] = int(rng.integers(1, 3))
        needs.append(tuple(need))

    def draw(*shape: int) -> np.ndarray:
        if seed % 2:
            return rng.integers(0, 4, shape).astype(float)
        return rng.random(shape) ** 2

    speed = rng.choice([1.0, 2.0, 5.0], (classes, 1))
    last = draw(classes, units) * speed
    sent = {
        key: draw(units) * rng.choice([0.1, 1.0])
        for key in itertools.product(range(classes), range(classes), (False, True))
    }
    return Case(
        last + draw(classes, units) * rng.choice([0.0, 0.5]), last,
        draw(classes, units) * rng.choice([0.0, 1.0, 10.0]),
        rng.integers(0, 9, (classes, units)), rng.integers(0, 5, (classes, units)), sent,
        needs, pools, per_node, int(rng.integers(1, 9)),
    )  # fmt: skip


def sums(values: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros((len(values), 1), values.dtype), values.cumsum(1)], axis=1)


def chains(case: Case, parts: PlacedParts, limits: list[int]) -> Chains:
    rows = [np.append(case.sent[tuple(pair)], np.inf) for pair in parts.pairs]
    units = case.last.shape[1]
    transfer = np.array(rows).reshape(len(rows), units + 1)
    return Chains(
        sums(case.other), sums(case.last), sums(case.once), sums(case.held), sums(case.active),
        np.array(limits), transfer,
    )  # fmt: skip


def graph_of(case: Case) -> PlacedParts:
    parts = part_graph(case.needs, case.pools, case.per_node, MOST)
    return parts.keeping(case.micro_batches)


def filled(case: Case, kinds: tuple[int, ...]) -> list[bool] | None:
    """Fill the pools from the last part on; tell which neighbours share a node; None: it can't be."""
    used, near, behind = [0] * len(case.pools), [], None
    for kind in reversed(kinds):
        mine = []
        for pool, need in enumerate(case.needs[kind]):
            free = (-used[pool]) % case.per_node[pool]
            if need > free > 0:
                return None  # devices would be left in the node
            mine += [(pool, (used[pool] + n) // case.per_node[pool]) for n in range(need)]
            used[pool] += need
        if any(u > size for u, size in zip(used, case.pools, strict=True)):
            return None
        nodes = set(mine)
        if behind is not None:
            near.append(len(nodes) == 1 and nodes == behind)
        behind = nodes
    return near[::-1]


def brute_force(case: Case, limits: list[int]) -> float:
    units, best = case.last.shape[1], math.inf
    for count in range(1, min(MOST, units) + 1):
        for kinds in itertools.product(range(len(case.needs)), repeat=count):
            near = filled(case, kinds)
            taken = [sum(case.needs[k][p] for k in kinds) for p in range(len(case.pools))]
            if near is None or taken != list(case.pools):
                continue
            for inner in itertools.combinations(range(1, units), count - 1):
                best = min(best, step_s(case, kinds, near, (0, *inner, units), limits))
    return best


def step_s(
    case: Case, kinds: tuple[int, ...], near: list[bool], bounds: tuple[int, ...], limits: list[int]
) -> float:
    count, m = len(kinds), case.micro_batches
    times, once = [], []
    for stage, (kind, (a, b)) in enumerate(zip(kinds, itertools.pairwise(bounds), strict=True)):
        flying = min(m, count - stage)
        if case.held[kind, a:b].sum() + flying * case.active[kind, a:b].sum() > limits[kind]:
            return math.inf
        table = case.last if stage == count - 1 else case.other
        times.append(math.fsum(table[kind, a:b]))
        once.append(math.fsum(case.once[kind, a:b]))
    sent = [
        case.sent[a, b, n][at]
        for (a, b), n, at in zip(itertools.pairwise(kinds), near, bounds[1:-1], strict=True)
    ]
    return (m - 1) * max(times) + math.fsum(times) + math.fsum(sent) + max(once)


@pytest.mark.parametrize("seed", range(RANDOM))
def test_equals_brute_force(seed: int) -> None:
    """Cuts, classes and their order, with limits on memory or none."""
    case = random_case(seed)
    parts = graph_of(case)
    rng = np.random.default_rng(seed)
    total = (case.held + 2 * case.active).sum(axis=1)
    for limits in ([NO_LIMIT] * len(case.needs), [int(t * rng.uniform(0.3, 1.0)) for t in total]):
        expected = brute_force(case, limits)
        found = place(chains(case, parts, limits), parts.graph, case.micro_batches)
        if found is None:
            assert expected == math.inf
            continue
        assert found.seconds == pytest.approx(expected, rel=1e-9)
        near = filled(case, found.kinds)
        assert near is not None
        told = step_s(case, found.kinds, near, found.bounds, limits)
        assert told == pytest.approx(expected, rel=1e-9)


def test_the_cases_are_of_all_sorts() -> None:
    """Some have no answer, some need several classes, some share nodes."""
    several = nodes = none = 0
    for seed in range(RANDOM):
        case = random_case(seed)
        parts = graph_of(case)
        found = place(
            chains(case, parts, [NO_LIMIT] * len(case.needs)), parts.graph, case.micro_batches
        )
        none += found is None
        if found is not None:
            several += len(set(found.kinds)) > 1
            nodes += any(filled(case, found.kinds) or ())
    assert none > 20 and several > 40 and nodes > 20, (none, several, nodes)


def test_the_example_of_the_module() -> None:
    seconds = np.array([[3.0, 1.0, 2.0, 2.0], [1.5, 0.5, 1.0, 1.0]])
    zero = np.zeros((2, 4))
    free = {key: np.zeros(4) for key in itertools.product(range(2), range(2), (False, True))}
    case = Case(
        seconds,
        seconds,
        zero,
        zero.astype(int),
        zero.astype(int),
        free,
        [(1, 0), (0, 1)],
        (1, 1),
        (1, 1),
        4,
    )
    parts = graph_of(case)
    found = place(chains(case, parts, [NO_LIMIT] * 2), parts.graph, 4)
    assert found is not None
    assert (found.bounds, found.kinds, found.seconds) == ((0, 3, 4), (1, 0), 14.0)


@pytest.mark.parametrize("seed", range(0, RANDOM, 10))
def test_the_best_of_each_number_of_parts_is_the_best_of_all(seed: int) -> None:
    case = random_case(seed)
    parts, free = graph_of(case), [NO_LIMIT] * len(case.needs)
    best = place(chains(case, parts, free), parts.graph, case.micro_batches)
    each = []
    for number in parts.numbers:
        fewer = parts.of(number)
        assert len(fewer.begin) == len(fewer.end) == len(fewer.graph.tail) <= len(parts.graph.tail)
        each.append(place(chains(case, parts, free), fewer.graph, case.micro_batches))
        if each[-1] is not None:  # its parts use all devices of every pool, one behind the other
            used = [(fewer.begin[edge], fewer.end[edge]) for edge in each[-1].edges[::-1]]
            assert used[-1][1] == tuple(case.pools) and not any(used[0][0])
            assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(used))
            known_s, args = each[-1].seconds, (chains(case, parts, free), fewer.graph)
            assert place(*args, case.micro_batches, below_s=known_s * (1 + 1e-9)) == each[-1]
            assert place(*args, case.micro_batches, below_s=known_s * (1 - 1e-9)) is None
    found = {cut.seconds: len(cut.kinds) for cut in each if cut is not None}
    assert (best is None) == (not found)
    if best is not None:
        assert min(found) == pytest.approx(best.seconds, rel=1e-9)
        assert set(found.values()) <= set(parts.numbers)


@pytest.mark.parametrize("seed", range(0, RANDOM, 10))
def test_a_class_that_is_left_out_is_on_no_stage(seed: int) -> None:
    """The best without it is that of brute force with no room in it."""
    case = random_case(seed)
    kept = list(range(1, len(case.needs)))[::-1]
    parts = graph_of(case).only(kept)
    tables = (table[kept] for table in case[:5])
    sent = {
        (kept.index(a), kept.index(b), near): row
        for (a, b, near), row in case.sent.items()
        if a in kept and b in kept
    }
    fewer, free = Case(*tables, sent, *case[6:]), [NO_LIMIT] * len(kept)
    found = place(chains(fewer, parts, free), parts.graph, case.micro_batches)
    expected = brute_force(case, [-1, *free])
    assert (found is not None) <= parts.reached
    assert (math.inf if found is None else found.seconds) == pytest.approx(expected, rel=1e-9)


def test_too_many_ways_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_parts, "MOST_EDGES", 2000)
    with pytest.raises(
        AutoDDLError, match="ways to place parts of 8 classes on 512 devices"
    ) as said:
        part_graph(
            [(n, 0) for n in (1, 2, 4, 8)] + [(0, n) for n in (1, 2, 4, 8)], (256, 256), (8, 8), 64
        )
    assert "parts='equal'" in str(said.value) and "\n" not in str(said.value)


@pytest.mark.parametrize(("stages", "each"), [(1, 7), (4, 1), (16, 60)])
def test_equal_units_on_equal_parts_have_a_closed_form(stages: int, each: int) -> None:
    units, micro_batches = stages * each, 64

    def row(value: float) -> np.ndarray:
        return sums(np.full((1, units), value))

    parts = part_graph([(1,)], [stages], [stages], stages)
    sent, none = np.full((len(parts.pairs), units + 1), 0.125), np.zeros((1, units + 1), np.int64)
    table = Chains(row(0.25), row(0.25), row(0.5), none, none, np.array([NO_LIMIT]), sent)
    found = place(table, parts.graph, micro_batches)
    seconds = (micro_batches - 1 + stages) * each * 0.25 + (stages - 1) * 0.125 + each * 0.5
    assert found is not None and found.seconds == seconds
    assert found.bounds == tuple(range(0, units + 1, each))
