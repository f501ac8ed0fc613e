"""The orders of pipelines beside published figures and the order that runs without deadlock."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.schedules import Pass, Route, TransferTurn, order, rendezvous


def names(passes: list[Pass]) -> str:
    return " ".join(f"{p.kind}{p.micro_batch}" for p in passes)


def test_1f1b_and_gpipe() -> None:
    assert names(order("1f1b", 0, 4, 5)) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert names(order("1f1b", 2, 4, 5)) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"
    assert names(order("1f1b", 3, 4, 3)) == "F0 B0 F1 B1 F2 B2"
    assert names(order("1f1b", 0, 4, 2)) == "F0 F1 B0 B1"
    assert names(order("gpipe", 1, 2, 3)) == "F0 F1 F2 B2 B1 B0"
    with pytest.raises(AutoDDLError, match="'oneflow' has no fixed order"):
        order("oneflow", 0, 2, 2)


def test_interleaved_is_the_figure_of_megatron() -> None:
    """Narayanan et al. 2021, figure 4: four devices with two chunks, eight micro-batches."""
    first = order("interleaved", 0, 4, 8, 2)
    forward = [(p.stage, p.micro_batch) for p in first if p.kind == "F"]
    assert forward == [(s, i) for group in (0, 4) for s in (0, 4) for i in range(group, group + 4)]
    backward = [(p.stage, p.micro_batch) for p in first if p.kind == "B"]
    assert backward == [(s, i) for group in (0, 4) for s in (4, 0) for i in range(group, group + 4)]
    warm = [next(i for i, p in enumerate(order("interleaved", r, 4, 8, 2)) if p.kind == "B")
            for r in range(4)]  # fmt: skip
    assert warm == [11, 9, 7, 5]  # one more than (4 − rank − 1) · 2 + 4, as 1F1B begins with F
    assert "".join(p.kind for p in first[10:22]) == "FBFBFBFBFBFB"


@pytest.mark.parametrize(("ranks", "micro_batches"), [*itertools.product(range(1, 6), range(1, 9))])
def test_neighbours_meet_in_the_order_that_has_run(ranks: int, micro_batches: int) -> None:
    """Hand-written 1F1B with blocking transfers, which has run on two and four ranks."""
    routes = [Route(i, i + 1) for i in range(ranks - 1)]
    routes += [Route(i + 1, i) for i in range(ranks - 1)]
    orders = [order("1f1b", r, ranks, micro_batches) for r in range(ranks)]
    found = rendezvous(orders, routes, range(ranks))
    for rank in range(ranks):
        assert found[rank] == by_hand(rank, ranks, micro_batches)


def by_hand(rank: int, ranks: int, micro_batches: int) -> list[Pass | TransferTurn]:
    result: list[Pass | TransferTurn] = []

    def move(source: int, target: int, i: int) -> None:
        if min(source, target) >= 0 and max(source, target) < ranks:
            forward = source < target
            result.append(TransferTurn(source if forward else ranks - 1 + target, i))

    def run(kind: str, i: int) -> None:
        result.append(Pass(kind, rank, i))

    warm = min(ranks - rank - 1, micro_batches)
    for i in range(warm):
        move(rank - 1, rank, i)
        run("F", i)
        move(rank, rank + 1, i)
    if warm < micro_batches:
        move(rank - 1, rank, warm)
    for i in range(micro_batches - warm):
        run("F", warm + i)
        move(rank, rank + 1, warm + i)
        move(rank + 1, rank, i)
        run("B", i)
        if i < micro_batches - warm - 1:
            move(rank - 1, rank, warm + i + 1)
        move(rank, rank - 1, i)
    for i in range(micro_batches - warm, micro_batches):
        move(rank + 1, rank, i)
        run("B", i)
        move(rank, rank - 1, i)
    return result


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
def test_skips_never_wait_for_ever(seed: int, schedule: str) -> None:
    """Ranks in their own order, meeting at transfers, all come to the end; nothing is read unsent."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, 6))
    chunks = int(rng.integers(2, 4)) if schedule == "interleaved" else 1
    micro_batches = ranks * int(rng.integers(1, 4))
    stages = ranks * chunks
    rank_of = [s % ranks for s in range(stages)]
    routes = [
        Route(a, b)
        for a, b in itertools.permutations(range(stages), 2)
        if abs(a - b) == 1 or rng.random() < 0.3
    ]
    orders = [order(schedule, r, ranks, micro_batches, chunks) for r in range(ranks)]
    found = rendezvous(orders, routes, rank_of)
    for mine, before in zip(found, orders, strict=True):
        assert [a for a in mine if isinstance(a, Pass)] == before
    position = [0] * ranks
    done: set[Pass | TransferTurn] = set()
    while any(p < len(mine) for p, mine in zip(position, found, strict=True)):
        heads = {r: found[r][p] for r, p in enumerate(position) if p < len(found[r])}
        moving = {
            r: a
            for r, a in heads.items()
            if isinstance(a, Pass) or heads.get(_other(a, r, routes, rank_of)) == a
        }
        assert moving, "deadlock"
        for r, action in moving.items():
            if isinstance(action, Pass):
                for index, route in enumerate(routes):
                    if (route.kind, route.target) == (action.kind, action.stage):
                        source = Pass(action.kind, route.source, action.micro_batch)
                        local = rank_of[route.source] == r
                        assert (
                            source if local else TransferTurn(index, action.micro_batch)
                        ) in done
            else:
                route = routes[action.transfer]
                assert Pass(route.kind, route.source, action.micro_batch) in done
            position[r] += 1
        done.update(moving.values())
    assert len([a for a in done if isinstance(a, TransferTurn)]) == micro_batches * sum(
        rank_of[r.source] != rank_of[r.target] for r in routes
    )


def _other(move: TransferTurn, rank: int, routes: list[Route], rank_of: list[int]) -> int:
    route = routes[move.transfer]
    ends = {rank_of[route.source], rank_of[route.target]}
    (other,) = ends - {rank}
    return other
