"""The order of stages: 1F1B, and no rendezvous that blocks for ever."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from autoddl.perfmodel.pipeline.one_f_one_b import one_f_one_b
from autoddl.perfmodel.pipeline.rendezvous import rendezvous_order

CASES = [
    (stages, micro_batches, seed)
    for stages in range(1, 7)
    for micro_batches in (1, 2, 3, 5, 8)
    for seed in range(4)
]


def links_of(stages: int, seed: int) -> list[tuple[int, int]]:
    """Return links of neighbours and, but for seed 0, some that skip stages; seed 3 has those alone."""
    every = list(combinations(range(stages), 2))
    skips = random.Random(seed).sample(every, min(len(every), seed))
    chain = [] if seed == 3 else list(pairwise(range(stages)))
    return sorted({*chain, *(skips if seed else [])})


@pytest.mark.parametrize(("stages", "micro_batches", "seed"), CASES)
def test_blocking_rendezvous_end_in_any_timing(stages: int, micro_batches: int, seed: int) -> None:
    links = links_of(stages, seed)
    orders = ordered(stages, micro_batches, links)
    for stage, order in enumerate(orders):
        assert [a for a in order if len(a) == 2] == one_f_one_b(stage, stages, micro_batches)
    for timing in range(3):
        simulate(orders, links, random.Random(timing))


def ordered(stages: int, micro_batches: int, links: list[tuple[int, int]]) -> list:
    passes = [one_f_one_b(stage, stages, micro_batches) for stage in range(stages)]
    return rendezvous_order(passes, links)


def simulate(orders: list, links: list[tuple[int, int]], rng: random.Random) -> None:
    """Let stages act in random order; a message needs both its stages at that very place."""
    left = [list(order) for order in orders]
    done: set[tuple] = set()

    def possible(stage: int) -> bool:
        if not left[stage]:
            return False
        action = left[stage][0]
        if len(action) == 2:
            return True
        source, target = action[2:]
        return stage == source and left[target][:1] == [action]

    while any(left):
        free = [stage for stage in range(len(orders)) if possible(stage)]
        assert free, f"nothing goes on: {[order[:1] for order in left]}"
        stage = rng.choice(free)
        action = left[stage].pop(0)
        if len(action) == 2:
            kind, n = action
            for a, b in links:
                source, target = (a, b) if kind == "F" else (b, a)
                assert target != stage or (kind, n, source, target) in done
            done.add((kind, n, stage))
        else:
            kind, n, source, target = action
            assert (kind, n, source) in done  # sent after it was computed
            left[target].pop(0)
            done.add(action)


def test_the_simulation_sees_a_deadlock() -> None:
    orders = ordered(2, 3, [(0, 1)])
    first = next(i for i, a in enumerate(orders[0]) if a[0] == "B" and len(a) == 4)
    orders[0][first - 1], orders[0][first] = orders[0][first], orders[0][first - 1]
    with pytest.raises(AssertionError):
        simulate(orders, [(0, 1)], random.Random(0))


def test_a_large_pipeline_takes_no_time() -> None:
    links = [*pairwise(range(16)), (0, 15), (3, 9)]
    assert sum(map(len, ordered(16, 64, links))) == 2 * 64 * (16 + 2 * len(links))
