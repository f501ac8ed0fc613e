"""Crossings: which layers a region has, and what a move costs."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.network.cost_network import CostNetwork, as_ints
from autoddl.search.rivals.random_sampling import random_assignment
from autoddl.search.step.crossings import Crossings, regions
from autoddl.search.step.layer_moves import LayerMoves, in_turn, moved, ranked
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer


def network(program: Program, mesh: str = "2x2") -> CostNetwork:
    return build(program, Mesh.parse(mesh), cluster())


def layer(name: str) -> int | None:
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return numbers[0] if numbers else None


def test_regions_are_runs_of_layers_the_stack_and_what_is_outside() -> None:
    found = network(transformer(5))
    largest, *runs = regions(found)
    assert [len(same) for same in runs] == [5, 3, 2]  # of 1, 2 and 4 layers
    assert sorted(np.concatenate(largest).tolist()) == list(range(len(found)))
    for length, same in zip((1, 2, 4), runs, strict=True):
        for number, region in enumerate(same):
            names = [found.variables.name[v] for v in region.tolist()]
            inside = {layer(name.partition("-")[0]) for name in names} - {None}
            first = number * length
            assert inside == set(range(first, min(first + length, 5)))
        assert len(np.unique(np.concatenate(same))) == sum(map(len, same))


def test_a_program_without_layers_has_what_is_outside() -> None:
    found = network(mlp(16, (16, 16, 16)))
    assert [len(r) for same in regions(found) for r in same if len(r)] == [len(found)]
    assert not any(
        Crossings(found).moves(random_assignment(found, 0), [random_assignment(found, 0)], found)
    )


@pytest.mark.parametrize("seed", range(3))
def test_moves_cost_what_the_network_says_and_keep_all_else(seed: int) -> None:
    found = network(transformer(3))
    here, *others = (random_assignment(found, 10 * seed + k) for k in range(3))
    kinds = Crossings(found).moves(here, others, found)
    moves = [move for same in kinds for move in same]
    assert moves and any(len(same) > 1 for same in kinds)
    for move in moves:
        after = moved(here, move)
        assert found.cost_s(after) - found.cost_s(here) == pytest.approx(move.more_s, abs=1e-12)
        changed = np.flatnonzero(as_ints(after) != as_ints(here))
        assert changed.tolist() == sorted(move.variables.tolist())
        assert any((as_ints(after)[changed] == as_ints(o)[changed]).all() for o in others)
    keys = [(m.variables.tobytes(), m.choices.tobytes()) for m in moves]
    assert len(set(keys)) == len(keys)


def test_layers_that_differ_move_by_themselves() -> None:
    """A move of equal layers changes those that are alike now, as the network says."""
    found = network(transformer(4))
    base, other = random_assignment(found, 1), random_assignment(found, 2)
    mixed = moved(
        base, min(Crossings(found).moves(base, [other], found)[1], key=lambda m: m.more_s)
    )
    moves = LayerMoves(found).cheapest(mixed, found, 10_000)
    assert moves == ranked(moves) and len({move.key for move in moves}) == len(moves)
    few = LayerMoves(found).cheapest(mixed, found, 7)
    assert [move.key for move in few] == [move.key for move in moves[:7]]
    for move in moves[:: max(1, len(moves) // 50)]:
        assert len({int(as_ints(mixed)[v]) for v in move.variables.tolist()}) == 1
        more_s = found.cost_s(moved(mixed, move)) - found.cost_s(mixed)
        assert more_s == pytest.approx(move.more_s, abs=1e-12)


def test_lists_take_turns() -> None:
    assert in_turn([1, 2, 3], [4], [5, 6]) == [1, 4, 5, 2, 6, 3]  # type: ignore[list-item]
    found = network(mlp(16, (16, 16)))
    moves = LayerMoves(found).cheapest(random_assignment(found, 1), found, 100)
    assert [m.more_s for m in moves] == sorted(m.more_s for m in moves)
