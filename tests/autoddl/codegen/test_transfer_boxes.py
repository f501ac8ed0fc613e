"""What ranks send when a tensor moves to another group: every target gets its shard, each part once."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from autoddl.codegen.transfer_boxes import transfer_boxes
from autoddl.sbp.shards import all_states, shard_slices
from autoddl.sbp.state import NdSbp

SHAPE = (8, 12)
MESHES = ((1,), (2,), (4,), (2, 2), (2, 3), (6,))


def boxes(state: NdSbp, mesh: tuple[int, ...]) -> list[tuple[tuple[int, int], ...]]:
    places = itertools.product(*map(range, mesh))
    slices = (shard_slices(SHAPE, state, mesh, place) for place in places)
    return [tuple((s.start, s.stop) for s in each) for each in slices]


def states(mesh: tuple[int, ...]) -> list[NdSbp]:
    return list(all_states(SHAPE, mesh, partial=False))


@pytest.mark.parametrize("source", MESHES)
@pytest.mark.parametrize("target", MESHES)
def test_every_target_gets_its_shard_and_nothing_twice(
    source: tuple[int, ...], target: tuple[int, ...]
) -> None:
    whole = np.arange(96).reshape(SHAPE)
    pairs = list(itertools.product(states(source), states(target)))
    for before, after in random.Random(0).sample(pairs, min(20, len(pairs))):
        has, wants = boxes(before, source), boxes(after, target)
        got = np.full((len(wants), *SHAPE), -1)
        for giver, taker, box in transfer_boxes(has, wants):
            inside = zip(box, has[giver], strict=True)
            assert all(a >= first and b <= last for (a, b), (first, last) in inside)
            part = tuple(slice(*ends) for ends in box)
            assert (got[taker][part] == -1).all()
            got[taker][part] = whole[part]
        for taker, box in enumerate(wants):
            part = tuple(slice(*ends) for ends in box)
            assert (got[taker][part] == whole[part]).all()
            assert (got[taker] >= 0).sum() == whole[part].size


@pytest.mark.parametrize("mesh", MESHES)
def test_groups_of_one_shape_and_state_send_one_to_one(mesh: tuple[int, ...]) -> None:
    for state in states(mesh):
        both = boxes(state, mesh)
        sent = transfer_boxes(both, both)
        assert sent == [(place, place, box) for place, box in enumerate(both)]


def test_copies_take_turns() -> None:
    whole = ((0, 8), (0, 12))
    assert [a for a, _, _ in transfer_boxes([whole] * 2, [whole] * 4)] == [0, 1, 0, 1]


def test_a_scalar_goes_whole() -> None:
    assert transfer_boxes([(), ()], [()]) == [(0, 0, ())]
